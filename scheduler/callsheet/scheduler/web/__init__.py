"""What the scheduler shows over HTTP: its metrics."""
