"""Checks of paths that clients name inside a sandbox.

A checked path is relative to the sandbox's working directory ("a/b", or "" for that directory), or absolute within the
sandbox ("/testbed/a").
"""

from __future__ import annotations

from callsheet.managers.sandbox.errors import InputRefusedError
from callsheet.v1.refusals import RefusedError
from callsheet.v1.rules.commands import check_path


def path_refused(path: str, rule: str) -> InputRefusedError:
    """Returns the error for a path that no sandbox can have."""
    return InputRefusedError("bad_path", f"path {path[:200]!r}: {rule}")


def checked_path(path: str, *, below: str = "", allow_empty: bool = False) -> str:
    """Returns a path without "." components and doubled slashes.

    This looks at the text only. Symbolic links are refused where the path is walked, by the agent inside the sandbox.

    Args:
        path: The path as the client gave it.
        below: A checked path that relative ones begin from.
        allow_empty: Whether the directory that it begins from is a valid answer.

    Raises:
        InputRefusedError: It climbs with "..", is too long, names nothing or holds a NUL.
    """
    try:
        if path:
            check_path("path", path)
    except RefusedError as refusal:
        raise path_refused(path, refusal.rule) from None
    components = [component for component in path.split("/") if component not in {"", "."}]
    if not components and not allow_empty:
        raise path_refused(path, "must name a file")
    relative = "/".join(components)
    if path.startswith("/"):
        return f"/{relative}"
    return f"{below.rstrip('/')}/{relative}".rstrip("/") or "/" if below else relative


def is_below(path: str, directory: str) -> bool:
    """Returns whether a path is a directory or something in it, by the text of both."""
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")
