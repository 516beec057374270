"""Actions, attempts and trajectories, from their submits to their ends."""
