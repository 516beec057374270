"""Finds scars of joined modules: headings in the middle of a module, and constants after its first definition."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")


def scars(source: str) -> list[str]:
    """Return the scars of a module, each as "LINE: heading" or "LINE: constant"."""
    body = ast.parse(source).body
    return [f"{row}: heading" for row in _headings(source, body)] + [f"{row}: constant" for row in _constants(body)]


def _headings(source: str, body: list[ast.stmt]) -> Iterator[int]:
    """Yield the last line of each comment block at the left margin that follows a statement and precedes no code."""
    first = min((node.lineno for node in body if not isinstance(node, ast.Expr)), default=0)
    lines = [*source.splitlines(), ""]
    for row, line in enumerate(lines, 1):
        if row > first and line.startswith("#") and not lines[row]:
            # Text within a statement is no comment.
            yield from () if any(node.lineno <= row <= (node.end_lineno or 0) for node in body) else (row,)


def _constants(body: list[ast.stmt]) -> Iterator[int]:
    """Yield the line of each constant after the first definition that needs no definition above it."""
    defined: set[str] = set()
    for node in body:
        if isinstance(node, _DEFINITIONS):
            defined.add(node.name)
        elif defined and isinstance(node, ast.Assign | ast.AnnAssign):
            names = [name for name in ast.walk(node) if isinstance(name, ast.Name)]
            targets = {name.id for name in names if isinstance(name.ctx, ast.Store)}
            if defined & ({name.id for name in names} - targets):
                defined |= targets
            elif any(map(_CONSTANT.fullmatch, targets)):
                yield node.lineno
