"""A server that speaks the protocols of model providers, and turns each call into an action of a trajectory.

Agents that can change nothing but a base URL and a key become users of Callsheet by it: docs/how-to/gateway.md.
"""
