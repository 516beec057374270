"""Processes that this one starts, watches and ends: the parts of a stack, and engines' servers."""
