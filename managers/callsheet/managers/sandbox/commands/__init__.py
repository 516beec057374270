"""An env_step, from its request to its result."""
