"""The planner alone: how long rounds take on a large fleet with a long queue."""
