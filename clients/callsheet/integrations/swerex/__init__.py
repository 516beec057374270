"""A server that speaks SWE-ReX's REST protocol and works in sandboxes of Callsheet: docs/how-to/swe-rex.md.

`callsheet facade swerex` runs it; `server.serve` does so in a program of one's own.
"""
