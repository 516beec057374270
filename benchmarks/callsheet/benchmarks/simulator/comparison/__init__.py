"""`callsheet bench sim`: policies side by side on the same trajectories."""
