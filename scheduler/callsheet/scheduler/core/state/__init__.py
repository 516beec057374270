"""What the core keeps, and the books of it. Nothing here decides."""
