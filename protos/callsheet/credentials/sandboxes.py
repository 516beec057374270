"""How a server of this machine knows a program in a sandbox that was let through to it."""

from __future__ import annotations

from typing import Final

SANDBOX_SOURCE: Final = "127.0.0.3"
"""From where sandbox managers connect to ports of the loopback in the name of their sandboxes.

A server that asks for no tokens trusts everybody on its machine. What comes from here is code that a model wrote.
"""
