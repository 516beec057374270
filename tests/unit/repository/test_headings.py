"""A module has one topic: no heading stands in the middle of it, and its constants stand before its definitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.module_scars import scars

REPOSITORY = Path(__file__).resolve().parents[3]
ROOMS = ("benchmarks", "cli", "clients", "common", "deploy", "managers", "protos", "scheduler")


def test_no_module_has_a_heading_or_a_constant_after_its_first_definition() -> None:
    sources = sorted(path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py") if "_pb2" not in path.name)
    assert len(sources) > 400
    found = {str(path.relative_to(REPOSITORY)): scars(path.read_text(encoding="utf-8")) for path in sources}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(): ...\n# A topic.\n\nA = 1\n", ["2: heading", "4: constant"]),
        ("import os\n\n# Two lines\n# of a heading.\n\n\nclass B:\n    pass\n", ["4: heading"]),
        ("def f(): ...\n_LIMIT: int = 1\n", ["2: constant"]),
        ('"""Text."""\n\n# A licence.\n\nimport os\n', []),
        ("def f(): ...\n# Its reason.\nclass B:\n    # Inner.\n\n    C = 1\n", []),
        ('TEXT = """\n# No comment.\n\n"""\n', []),
        ("def f(): ...\nA = f()\nB: dict[str, int] = {**A}\nlog = 1\n", []),
    ],
)
def test_headings_and_late_constants_are_found(source: str, found: list[str]) -> None:
    assert scars(source) == found
