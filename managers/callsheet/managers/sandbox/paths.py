"""Checks of paths that clients name inside a sandbox's working directory."""

from __future__ import annotations

_LONGEST_PATH = 4096
_LONGEST_COMPONENT = 255


class PathRefusedError(ValueError):
    """A path that would not stay inside the working directory."""

    def __init__(self, path: str, rule: str) -> None:
        super().__init__(f"path {path[:200]!r}: {rule}")
        self.path = path
        self.rule = rule


def split_relative(path: str, *, allow_empty: bool = False) -> tuple[str, ...]:
    """Returns the components of a relative path; "." components and doubled slashes are dropped.

    This looks at the text only. Symbolic links are refused where the path is walked, by the agent inside the sandbox.

    Args:
        path: The path as the client gave it.
        allow_empty: Whether the working directory itself is a valid answer.

    Raises:
        PathRefusedError: It is absolute, climbs with "..", is too long, names nothing or holds a NUL.
    """
    if "\0" in path:
        raise PathRefusedError(path, "must not hold a NUL character")
    encoded = path.encode("utf-8", "surrogateescape")
    if len(encoded) > _LONGEST_PATH:
        raise PathRefusedError(path, f"must not be longer than {_LONGEST_PATH} bytes")
    if path.startswith("/"):
        raise PathRefusedError(path, "must be relative to the working directory")
    components = tuple(component for component in path.split("/") if component not in {"", "."})
    if ".." in components:
        raise PathRefusedError(path, 'must not hold ".."')
    if any(len(component.encode("utf-8", "surrogateescape")) > _LONGEST_COMPONENT for component in components):
        raise PathRefusedError(path, f"no component may be longer than {_LONGEST_COMPONENT} bytes")
    if not components and not allow_empty:
        raise PathRefusedError(path, "must name a file below the working directory")
    return components
