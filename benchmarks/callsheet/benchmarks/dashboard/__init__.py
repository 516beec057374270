"""What the pages of a dashboard cost on a scheduler with a long past, and what asking for them costs the scheduler."""
