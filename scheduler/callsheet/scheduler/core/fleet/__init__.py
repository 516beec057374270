"""Managers and nodes: joining, silence, loss and leaving."""
