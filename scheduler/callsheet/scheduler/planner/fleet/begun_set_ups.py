"""Where sandboxes began last with each set-up: the node makes it, or is likely to keep it."""

from __future__ import annotations

from callsheet.scheduler.core.ledger import Node

MOST_BEGUN = 4096


class BegunSetUps:
    """Nodes by `ActionRequest.set_up`; of many set-ups those that began last."""

    def __init__(self) -> None:
        """Starts with none."""
        self._nodes: dict[str, Node] = {}

    def begin(self, name: str, node: Node) -> None:
        """Notes that a sandbox with a set-up begins on a node; one without a name is no set-up."""
        if name:
            self._nodes.pop(name, None)
            self._nodes[name] = node
            if len(self._nodes) > MOST_BEGUN:
                del self._nodes[next(iter(self._nodes))]

    def copy(self) -> BegunSetUps:
        """The same, to be changed apart."""
        copied = BegunSetUps()
        copied._nodes = dict(self._nodes)
        return copied

    def node_of(self, name: str) -> Node | None:
        """Where the last one began; None if none did, or too long ago."""
        return self._nodes.get(name)
