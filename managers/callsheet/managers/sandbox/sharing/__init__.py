"""Shares of a node among its sandboxes: cores, memory and the clock of an attempt."""
