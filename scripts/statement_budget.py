"""Counts the code statements of each room, and fails if a room has more than its budget.

    python3 scripts/statement_budget.py [ROOT]

A code statement is a node `ast.stmt` of Python's syntax tree that is neither an import nor an expression which is only
a text (a docstring). Shorter names, longer lines, fewer docstrings and joined files win nothing. Generated code is left
out. The budgets are in pyproject.toml, `tool.callsheet.statement-budget`, one row a room, tests too. A commit that
raises a row says in its body what for.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_COUNTED = ("build", "dist")
TESTS = "tests"
GENERATED = re.compile(r"_pb2(_grpc)?\.py$|^protos/.*_values\.py$")
NAMESPACE = "callsheet"


@dataclass(frozen=True)
class Size:
    """Size of a room or a file."""

    statements: int = 0
    lines: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.statements + other.statements, self.lines + other.lines)


def sources(root: Path) -> Iterator[Path]:
    """Yields the Python files that count, relative to `root`."""
    for top in sorted(root.iterdir()):
        if top.name.startswith(".") or top.name in NOT_COUNTED:
            continue
        for path in sorted(top.rglob("*.py")) if top.is_dir() else [top] * (top.suffix == ".py"):
            relative = path.relative_to(root)
            if not GENERATED.search(relative.as_posix()):
                yield relative


def room_of(path: Path) -> str:
    """Returns the room of a source file.

    A room is a package of one of the portions of `callsheet`, as in `scheduler/core`. The modules beside the packages
    of a portion are the room `scheduler`. Each folder of `tests` is a room, as in `tests/unit`. Any other top folder
    that is no portion is one room.
    """
    top, *folders = path.parts[:-1] or (".",)
    if top == TESTS:
        return "/".join([top, *folders[:1]])
    if folders[:1] != [NAMESPACE]:
        return top
    inner = folders[1:]
    if inner[:1] == [top]:
        inner = inner[1:]
    return "/".join([top, *inner[:1]])


def is_code(node: ast.AST) -> bool:
    """Returns true for a statement that is neither an import nor only a text."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return not isinstance(node.value.value, str)
    return isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom)


def sizes(root: Path) -> dict[str, Size]:
    """Returns the size of each room that has a statement."""
    found: dict[str, Size] = {}
    for path in sources(root):
        text = (root / path).read_text(encoding="utf-8")
        statements = sum(is_code(node) for node in ast.walk(ast.parse(text, str(path))))
        if statements:
            room = room_of(path)
            found[room] = found.get(room, Size()) + Size(statements, text.count("\n"))
    return found


def findings(found: Mapping[str, Size], budgets: Mapping[str, int]) -> list[str]:
    """Returns a sentence for each room over its budget, without a budget, or without code."""
    over = [
        f"{room} has {size.statements} statements; its budget is {budgets[room]}"
        for room, size in sorted(found.items())
        if size.statements > budgets.get(room, size.statements)
    ]
    unknown = [f"{room} has no budget" for room in sorted(found.keys() - budgets.keys())]
    empty = [f"{room} has a budget and no code" for room in sorted(budgets.keys() - found.keys())]
    return over + unknown + empty


def main(root: Path) -> int:
    """Prints the table with the sums of code and tests, then the findings; returns the exit code."""
    with (root / "pyproject.toml").open("rb") as file:
        budgets = tomllib.load(file)["tool"]["callsheet"]["statement-budget"]
    found = sizes(root)
    print(f"{'room':24} {'statements':>10} {'budget':>7} {'lines':>7}")
    for of_tests in (False, True):
        rooms = [room for room in sorted(found.keys() | budgets.keys()) if room.startswith(TESTS) == of_tests]
        rows = [(room, found.get(room, Size()), budgets.get(room, 0)) for room in rooms]
        total = sum((size for _, size, _ in rows), Size())
        for name, size, budget in [
            *rows,
            ("all tests" if of_tests else "all code", total, sum(row[2] for row in rows)),
        ]:
            print(f"{name:24} {size.statements:>10} {budget:>7} {size.lines:>7}")
    wrong = findings(found, budgets)
    for sentence in wrong:
        print(f"statement_budget: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT))
