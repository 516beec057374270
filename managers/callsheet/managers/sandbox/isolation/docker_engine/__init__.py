"""Sandboxes in containers of a Docker engine: a hardened one for each trajectory, with the agent as first process.

| module | what it does |
|---|---|
| `container.py` | says what a sandbox's container is: its mounts, limits and what it may not do |
| `engine.py` | talks to the engine; every call blocks |
| `groups.py` | finds the control groups of a running container |
| `backend.py` | makes sandboxes of it all |
"""
