"""Engines whose KV caches are short: who may hold KV, and what it costs to lose it."""
