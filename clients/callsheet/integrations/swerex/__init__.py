"""A server that speaks SWE-ReX's REST protocol and does what it is asked in sandboxes of Callsheet: docs/swe-rex.md.

`callsheet facade swerex` runs it; `server.serve` does so in a program of one's own.
"""
