"""Fleets: what is wanted of each role, the providers that have its nodes, and the keeper that holds both together."""
