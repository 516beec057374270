"""`callsheet bench real`: policies side by side with real processes, and the simulator's prediction of each."""
