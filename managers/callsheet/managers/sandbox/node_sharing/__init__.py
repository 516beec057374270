"""Shares a node's cores among running commands. Pure: no I/O, no clock; the simulator runs it unchanged."""

from callsheet.managers.sandbox.node_sharing.command import KnownCommand, Lane, LaneChange
from callsheet.managers.sandbox.node_sharing.settings import NodeSharingSettings
from callsheet.managers.sandbox.node_sharing.sharing import NodeSharing

__all__ = ["KnownCommand", "Lane", "LaneChange", "NodeSharing", "NodeSharingSettings"]
