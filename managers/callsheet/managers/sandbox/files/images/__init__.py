"""Root file systems of sandboxes: where they come from, what is prepared of them, and what is kept for later."""
