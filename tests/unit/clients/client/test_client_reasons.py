"""The vocabulary of reasons: what managers and the core say is in it, and docs/concepts/outcomes.md explains each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from callsheet.client import Reason

_ROOT = Path(__file__).parents[4]
_SOURCES = ("managers/callsheet/managers", "scheduler/callsheet/scheduler/core")
_WORD = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# Not reasons of failures: names of other things that have a parameter or a variable called "reason".
_OTHER = {"g", "message", "reason", "replace", "session", "stopped"}
_NO_REASON = ("__init__", "close", "generation", "_finish", "close_trajectory", "on_closed", "_fail")


def _trees() -> list[ast.Module]:
    return [ast.parse(path.read_text()) for root in _SOURCES for path in (_ROOT / root).rglob("*.py")]


def _positions(trees: list[ast.Module]) -> dict[str, int]:
    """Where callables take a reason: by their names, the position of the argument."""
    found: dict[str, int] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef):
            fields = [
                each.target.id
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            ]
            if "reason" in fields:
                found[node.name] = fields.index("reason")
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name == "__init__" and "reason" in _parameters(each):
                    found[node.name] = _parameters(each).index("reason") - 1
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in _NO_REASON:
            names = _parameters(node)
            if "reason" in names:
                found[node.name] = names.index("reason") - (names[0] in {"self", "cls"})
    return found


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return [each.arg for each in (*node.args.posonlyargs, *node.args.args)]


def _given(tree: ast.Module, positions: dict[str, int]) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "reason")
            if name in positions and len(node.args) > positions[name]:
                yield node.args[positions[name]]
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {getattr(each, "id", getattr(each, "attr", "")) for each in targets}
            if "reason" in names:
                yield node.value
        elif isinstance(node, ast.FunctionDef) and node.name == "_reason":
            yield from (each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value)


def _words(expression: ast.expr) -> set[str]:
    if isinstance(expression, ast.IfExp):
        return _words(expression.body) | _words(expression.orelse)
    if isinstance(expression, ast.BoolOp):
        return {word for value in expression.values for word in _words(value)}
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str) and _WORD.fullmatch(expression.value):
        return {expression.value}
    return set()


def test_every_reason_in_the_sources_is_in_the_vocabulary() -> None:
    trees = _trees()
    positions = _positions(trees)
    said = {word for tree in trees for value in _given(tree, positions) for word in _words(value)} - _OTHER
    assert len(said) > 30
    assert said - set(Reason) == set()


def test_the_documentation_explains_every_reason() -> None:
    text = (_ROOT / "docs" / "concepts" / "outcomes.md").read_text()
    assert [reason for reason in Reason if f"`{reason}`" not in text] == []
