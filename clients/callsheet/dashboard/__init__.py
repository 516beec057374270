"""The dashboard: server-rendered pages that explain waits, and show work, engines and costs.

It is a client of the scheduler like any other. What a viewer may see or do is what the viewer's token may.
"""
