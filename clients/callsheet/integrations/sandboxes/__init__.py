"""What facades for clients of other APIs have in common: their sandboxes, settings and servers."""
