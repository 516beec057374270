"""Stored payloads: who may name them, who keeps them, and when they go."""
