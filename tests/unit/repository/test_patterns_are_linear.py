"""No pattern takes more than linear time, whatever a model, a user or a sandbox may write."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp  # noqa: F401 (modules whose patterns are read need it; where it is missing this file is left out)
import pytest
from callsheet.managers.reward.hosted.model_spec import SCORE_PATTERN

from tests.support.pattern_ambiguity import growth

ROOT = Path(__file__).parents[3]
ROOMS = ("cli", "clients", "common", "deploy", "managers", "protos", "scheduler")
SEARCHES = frozenset({"search", "findall", "finditer", "sub", "subn", "split"})
MATCHES = frozenset({"match", "fullmatch"})
OF_OPERATORS = {
    "managers/callsheet/managers/inference/scripted_engine/script.py": "a script's own pattern",
    "managers/callsheet/managers/reward/hosted/model_spec.py": "score_pattern; the default is below",
    "managers/callsheet/managers/reward/hosted/questions.py": "score_pattern; the default is below",
}
"""Where the operator who starts the process gives the pattern."""


@dataclass(frozen=True)
class Use:
    """A pattern and how it is used."""

    place: str
    pattern: str | bytes
    flags: int
    searches: bool
    to_the_end: bool


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            text = path.read_text()
            if "\nimport re\n" in text:
                yield path, ast.parse(text)


def calls(tree: ast.AST, module: str) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and module in ("", node.func.value.id)
        ):
            yield node, node.func.attr


def methods(name: str, tree: ast.Module) -> set[str]:
    """What a compiled pattern is used for: by its name, else by a parameter's; a search where that is not told."""
    used = {
        (ast.unparse(call.func.value), how)
        for call, how in calls(tree, "")
        if how in SEARCHES | MATCHES and isinstance(call.func, ast.Attribute)
    }
    return {how for subject, how in used if subject == name} or {how for _, how in used} or {"search"}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts).removesuffix(".__init__")


def uses() -> Iterator[Use]:
    for path, tree in sources():
        place = str(path.relative_to(ROOT))
        if place in OF_OPERATORS:
            continue
        named = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Call)
        }
        for name, value in named.items():
            if ast.unparse(value.func) == "re.compile":
                compiled = getattr(importlib.import_module(module_of(path)), name)
                for how in methods(name, tree):
                    yield Use(f"{place}: {name}", compiled.pattern, compiled.flags, how in SEARCHES, how == "fullmatch")
        for call, how in calls(tree, "re"):
            if (how == "compile" and call in named.values()) or how not in SEARCHES | MATCHES | {"compile"}:
                continue
            pattern = call.args[0]
            flags = re.MULTILINE if "re.MULTILINE" in ast.unparse(call) else 0
            text = str(pattern.value) if isinstance(pattern, ast.Constant) else ast.unparse(pattern)
            yield Use(f"{place}:{call.lineno}", text, flags, how in SEARCHES, how == "fullmatch")


def test_each_pattern_reads_a_text_in_one_way() -> None:
    found = list(uses())
    assert found
    reasons = {
        use: growth(use.pattern, use.flags & ~re.UNICODE, searches=use.searches, to_the_end=use.to_the_end)
        for use in found
    }
    assert {use.place: reason for use, reason in reasons.items() if reason is not None} == {}


def test_the_score_of_a_judge_is_found_in_one_pass() -> None:
    assert growth(SCORE_PATTERN, 0, searches=True) is None


@pytest.mark.parametrize(
    "pattern",
    [
        r"<tool_call>\s*(.*?)\s*</tool_call>",
        r"```(?:bash|sh)\s*\n(.*?)```",
        r"<parameter=([^>\s]+)\s*>(.*?)(?:</parameter>|(?=<parameter=)|$)",
        r"\d+\]",
        r"(a+)+b",
        r"(?:a|b|ab)*c",
        r"\s+$",
    ],
)
def test_a_pattern_that_goes_back_is_found(pattern: str) -> None:
    assert growth(pattern, re.DOTALL, searches=True) is not None


@pytest.mark.parametrize("pattern", [r"\d+", r"\s*", r"a[^a]*b", r"\w+ \d+x", r"^\w+=\[[^]\n]*\]"])
def test_a_pattern_that_never_goes_back_far_is_not(pattern: str) -> None:
    assert growth(pattern, re.MULTILINE, searches=pattern[0] != "\\" or pattern[-1] != "x") is None
