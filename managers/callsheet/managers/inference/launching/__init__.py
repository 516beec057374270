"""Engines' servers that a manager starts, watches and ends itself."""
