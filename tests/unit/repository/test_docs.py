"""What the documentation names is there. `make docs` checks the links between pages; these tests check the rest."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_OUTSIDE_OF_SITE = ("README.md", "CONTRIBUTING.md")
# Pages of the lab are history: what they name may be gone.
_PAGES = [*_OUTSIDE_OF_SITE, *(str(page.relative_to(_ROOT)) for page in (_ROOT / "docs").rglob("*.md"))]
_LIVING = [page for page in _PAGES if not page.startswith("docs/lab/2")]
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
_FILE = re.compile(r"`((?:[\w.-]+/)*[a-z_][\w-]*\.(?:py|proto|toml|sh|lock))`")
_ANSWER = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.py):([\w.]+)`")
_ROOMS = (
    "benchmarks",
    "cli",
    "clients",
    "common",
    "deploy",
    "docs",
    "examples",
    "managers",
    "protos",
    "scheduler",
    "scripts",
    "tests",
)


@cache
def _files() -> dict[str, list[Path]]:
    """All files that documentation may name, by their last part."""
    found: dict[str, list[Path]] = {path.name: [path] for path in _ROOT.iterdir() if path.is_file()}
    for path in (path for room in _ROOMS for path in (_ROOT / room).rglob("*.*")):
        found.setdefault(path.name, []).append(path)
    return found


def _named(name: str) -> list[Path]:
    """The files that a name stands for: a whole path, or as much of its end as tells which file is meant."""
    return [path for path in _files().get(Path(name).name, []) if f"/{path}".endswith(f"/{name}")]


def _definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node.body, f"{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))


@pytest.mark.parametrize("page", _OUTSIDE_OF_SITE)
def test_links_lead_somewhere(page: str) -> None:
    broken = [link for link in _LINK.findall((_ROOT / page).read_text()) if not (_ROOT / link).exists()]
    assert not broken, f"{page} links to files that are not there"


@pytest.mark.parametrize("page", _LIVING)
def test_files_that_are_named_are_there(page: str) -> None:
    gone = [name for name in _FILE.findall((_ROOT / page).read_text()) if not _named(name)]
    assert not gone, f"{page} names files that are not there: say where their content is now"


@pytest.mark.parametrize("page", _LIVING)
def test_definitions_that_are_named_are_there(page: str) -> None:
    wrong = []
    for line in (_ROOT / page).read_text().splitlines():
        for path, name in _ANSWER.findall(line):
            defined = {each for file in _named(path) for each in _definitions(ast.parse(file.read_text()).body)}
            if name not in defined:
                wrong.append(f"{line.strip()}\n    has `{path}:{name}`; change this answer to what took its place")
    assert not wrong, f"{page}:\n" + "\n".join(wrong)


def test_the_glossary_answers_ten_questions() -> None:
    section = (_ROOT / "docs" / "glossary.md").read_text().partition("## Ten questions")[2]
    questions = [line for line in section.splitlines() if "?" in line]
    assert len(questions) == 10
    assert not [line for line in questions if not _ANSWER.search(line)], "each answer names a file and a definition"


# Of clients, the scheduler and managers none may import another: what crosses between them has a class on each side.
_ON_BOTH_SIDES = frozenset(
    """
    Action ActionKind ActionState Attempt CommandDefaults Cost Demand EngineWeights Explanation FailureKind FinishReason
    Generation Group Holder Job Lane LeasedBatch LengthShare LiveOutput LogProbsMode LostManager Manager OnInfra
    Opened Opening Outbox Outlook PayloadError PayloadTooLargeError PriorityClass RefusalCode RefusedError Sampling
    Session Settlement SharedCores Shortage TimeoutKind Timeouts Token Trajectory TrajectoryEnd UpdateMode Usage
    WaitReason WantedUnits WeightsStanding
    """.split()  # noqa: SIM905
)


def _rooms_by_class() -> dict[str, list[str]]:
    """Rooms in which a public class of this name is defined: "client", "scheduler", "managers" and the like."""
    found: dict[str, list[str]] = {}
    for root in ("benchmarks", "cli", "clients", "common", "deploy", "managers", "protos", "scheduler"):
        for path in sorted((_ROOT / root / "callsheet").rglob("*.py")):
            if "_pb2" not in path.name:
                room = path.relative_to(_ROOT / root / "callsheet").parts[0]
                classes = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))
                for node in classes:
                    if not node.name.startswith("_"):
                        found.setdefault(node.name, []).append(room)
    return found


def test_the_name_of_a_class_has_one_meaning() -> None:
    repeated = {name: rooms for name, rooms in _rooms_by_class().items() if len(rooms) > 1}
    within = [name for name, rooms in repeated.items() if len(set(rooms)) < len(rooms)]
    assert not within, "a room has two classes of a name; the glossary's word belongs to one of them"
    assert set(repeated) <= _ON_BOTH_SIDES, "give the new class a name of its own, or name it as meant the same"
    assert set(repeated) >= _ON_BOTH_SIDES, "these names are no longer on both sides"
