"""The gateway's server: HTTP in, generate actions out, and call records kept durably. docs/how-to/gateway.md.

`callsheet gateway` runs it; `server.serve` does so in a program of one's own.
"""
