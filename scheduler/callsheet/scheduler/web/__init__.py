"""Pages that the scheduler serves over HTTP: its metrics."""
