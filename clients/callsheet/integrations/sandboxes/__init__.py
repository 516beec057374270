"""Common parts of facades for clients of other APIs: their sandboxes, settings and servers."""
