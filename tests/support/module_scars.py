"""Finds scars of joined modules: headings in the middle of a module, and constants after its first definition."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")


def scars(source: str) -> list[str]:
    """Return the scars of a module, each as "LINE: heading" or "LINE: constant"."""
    tree = ast.parse(source)
    return [f"{row}: heading" for row in _headings(source, tree)] + [f"{row}: constant" for row in _constants(tree)]


def _headings(source: str, tree: ast.Module) -> Iterator[int]:
    """Yield the last line of each comment block at the left margin that follows a statement and precedes no code."""
    first = min((node.lineno for node in tree.body if not isinstance(node, ast.Expr)), default=0)
    lines = [*source.splitlines(), ""]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row, column = token.start
        if token.type == tokenize.COMMENT and column == 0 and row > first and not lines[row]:
            yield row


def _constants(tree: ast.Module) -> Iterator[int]:
    """Yield the line of each constant after the first definition that needs no definition above it."""
    defined: set[str] = set()
    for node in tree.body:
        names = [name for name in ast.walk(node) if isinstance(name, ast.Name)]
        targets = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        if isinstance(node, _DEFINITIONS):
            defined.add(node.name)
        elif defined & ({name.id for name in names} - targets):
            defined |= targets
        elif defined and any(map(_CONSTANT.fullmatch, targets)):
            yield node.lineno
