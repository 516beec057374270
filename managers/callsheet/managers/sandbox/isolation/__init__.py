"""Backends that make sandboxes: processes, bubblewrap and containers."""
