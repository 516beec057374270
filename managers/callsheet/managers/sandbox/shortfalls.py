"""What the sandboxes of a machine are not held to, by what its manager can do."""

from __future__ import annotations

from collections.abc import Mapping

# By the capability that would bound it, in the order of the harm. `docs/concepts/containment.md` has the whole table.
_BOUNDED_BY: Mapping[str, str] = {
    "memory_hard": "the memory of all its processes together",
    "socket_memory_hard": "buffers of sockets",
    "own_user": "pipes, files watched by epoll, signals that wait",
    "own_file_locks": "locks on files that all can read",
    "landlock": "what commands do to each other",
}
_NEVER = ("records of file locks", "the bandwidth of memory and disks")


def not_enforced(capabilities: Mapping[str, str]) -> list[str]:
    """Returns what nothing bounds for one sandbox in namespaces, in words, given the manager's capabilities."""
    return [*(words for name, words in _BOUNDED_BY.items() if capabilities.get(name) == "no"), *_NEVER]
