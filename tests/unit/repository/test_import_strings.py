"""Own modules are imported, which a type checker sees, and not named in strings; entry points are the one exception."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
ROOMS = ("cli", "clients", "common", "deploy", "managers", "scheduler", "benchmarks")
MODULE = re.compile(r"callsheet(\.\w+)+")
# Names of a logger and of an entry point group that are those of a package.
NO_IMPORTS = {"callsheet.client", "callsheet.credentials", "callsheet.environments", "callsheet.managers"}


def module_names(path: Path) -> Iterator[str]:
    """The strings of a source file that name a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value):
            yield node.value


def is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_no_own_module_is_named_in_a_string() -> None:
    sources = [path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")]
    assert len(sources) > 400
    named = {(str(path.relative_to(REPOSITORY)), name) for path in sources for name in module_names(path)}
    assert {(path, name) for path, name in named if name not in NO_IMPORTS and is_module(name)} == set()
