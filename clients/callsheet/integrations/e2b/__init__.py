"""A server that speaks E2B's protocols and works in sandboxes of Callsheet: docs/how-to/e2b.md.

`callsheet facade e2b` runs it; `server.serve` does so in a program of one's own.
"""
