"""What each staleness policy trains on, where trajectories take from one minute to an hour."""
