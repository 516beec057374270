"""History of trajectories and actions: pages of the journal, completed from the core's state."""
