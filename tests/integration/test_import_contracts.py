"""import-linter sees every room of the namespace: each contract in pyproject.toml catches the import it forbids."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ROOTS = ("protos", "common", "scheduler", "managers", "clients", "deploy", "benchmarks", "cli")
# The copy takes the place of the editable install.
LINT = """
import pathlib, sys
repository, copy, *rooms = sys.argv[1:]
editable = {str(pathlib.Path(repository, room)) for room in rooms}
sys.path[:] = [str(pathlib.Path(copy, room)) for room in rooms] + [path for path in sys.path if path not in editable]
from importlinter.cli import lint_imports
sys.exit(lint_imports(config_filename=str(pathlib.Path(repository, "pyproject.toml")), no_cache=True))
"""
MODULES = """
import grimp
print(*grimp.build_graph("callsheet", cache_dir=None).modules, sep="\\n")
"""
CORE = "Core and planner do no I/O, read no clock and know nothing around them"
FLOORS = "Each top folder imports the folders below it alone"
VIOLATIONS = [
    ("common/callsheet/wire/violation.py", "from callsheet.v1 import contract", FLOORS),
    (
        "managers/callsheet/managers/violation.py",
        "from callsheet.gateway import chat",
        "Managers know neither the scheduler nor clients",
    ),
    ("protos/callsheet/v1/violation.py", "import callsheet.client", FLOORS),
    (
        "common/callsheet/timing/violation.py",
        "import anyio",
        "Backoff and deadlines, which all rooms share, need the standard library alone",
    ),
    ("scheduler/callsheet/scheduler/core/violation.py", "from callsheet.v1.rules import fields", CORE),
    ("clients/callsheet/client/violation.py", "import sqlalchemy", "The client needs the base install alone"),
    (
        "clients/callsheet/client/violation.py",
        "from callsheet.scheduler import core",
        "Clients know neither the scheduler nor managers",
    ),
    (
        "clients/callsheet/integrations/swerex/violation.py",
        "from callsheet.managers import node",
        "Clients know neither the scheduler nor managers",
    ),
    (
        "clients/callsheet/environments/violation.py",
        "import torch",
        "Environments import neither a trainer nor a model",
    ),
    (
        "managers/callsheet/managers/violation.py",
        "from callsheet.scheduler.core.words import records",
        "Managers know neither the scheduler nor clients",
    ),
    ("deploy/callsheet/deploy/violation.py", "import ray", "Ray is imported by its provider alone"),
    (
        "clients/callsheet/client/violation.py",
        "from callsheet.deploy import stack",
        FLOORS,
    ),
    (
        "cli/callsheet/cli/violation.py",
        "from callsheet.managers import node",
        "The command line reaches scheduler and managers through deployment",
    ),
    (
        "common/callsheet/options/violation.py",
        "from callsheet.managers import node",
        FLOORS,
    ),
    (
        "deploy/callsheet/deploy/violation.py",
        "from callsheet.cli import output",
        FLOORS,
    ),
    (
        "scheduler/callsheet/scheduler/service/violation.py",
        "def later() -> None:\n    import callsheet.managers",
        "The scheduler knows neither managers nor clients",
    ),
    ("scheduler/callsheet/scheduler/core/violation.py", "import asyncio", CORE),
    ("scheduler/callsheet/scheduler/core/violation.py", "from google.protobuf import message", CORE),
    ("scheduler/callsheet/scheduler/planner/violation.py", "from time import monotonic", CORE),
    (
        "scheduler/callsheet/scheduler/core/violation.py",
        "from callsheet.scheduler.planner import violation_target",
        "The core does not know its planner",
    ),
    (
        "scheduler/callsheet/scheduler/store/violation.py",
        "from callsheet.scheduler.core.words import model",
        "The store takes nothing but records from the core",
    ),
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all rooms."""
    copy = tmp_path_factory.mktemp("sources")
    for root in ROOTS:
        shutil.copytree(REPOSITORY / root, copy / root, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def lint(sources: Path) -> str:
    """What the linter says of a copy."""
    command = [sys.executable, "-c", LINT, str(REPOSITORY), str(sources), *ROOTS]
    result = subprocess.run(command, cwd=sources, capture_output=True, text=True, timeout=220, check=False)
    assert "Contracts:" in result.stdout, result.stdout + result.stderr
    return result.stdout


def module_at(number: int) -> str:
    """The module that holds a violation; others of its package hold others."""
    return Path(VIOLATIONS[number][0]).with_suffix("").as_posix().partition("/")[2].replace("/", ".") + f"_{number}"


@pytest.fixture(scope="module")
def broken(sources: Path) -> dict[str, str]:
    """All violations at once: what is said of each contract that is broken."""
    added = {
        sources / path.replace("violation.py", f"violation_{number}.py"): f"{statement}\n"
        for number, (path, statement, _) in enumerate(VIOLATIONS)
    }
    added[sources / "scheduler/callsheet/scheduler/planner/violation_target.py"] = ""
    for path, text in added.items():
        path.write_text(text)
    try:
        told = lint(sources).partition("Broken contracts")[2]
    finally:
        for path in added:
            path.unlink()
    # Each has its name above a line of dashes.
    _, *parts = re.split(r"^(.+)\n-+$", told, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("number", range(len(VIOLATIONS)), ids=lambda number: "-".join(VIOLATIONS[number]))
def test_contract_catches_what_it_forbids(broken: dict[str, str], number: int) -> None:
    assert f"{module_at(number)} -> " in broken[VIOLATIONS[number][2]]


def test_store_may_take_records(sources: Path) -> None:
    """Nothing else is broken in the copy, so that the violations are what broke contracts above."""
    permitted = sources / "scheduler/callsheet/scheduler/store/permitted.py"
    permitted.write_text("from callsheet.scheduler.core.words import records\n")
    try:
        assert " BROKEN" not in lint(sources)
    finally:
        permitted.unlink()


def test_every_module_is_seen() -> None:
    """A directory without __init__.py inside a package would be left out silently, and its imports unchecked."""
    result = subprocess.run([sys.executable, "-c", MODULES], capture_output=True, text=True, timeout=220, check=True)
    paths = [path.relative_to(REPOSITORY / root) for root in ROOTS for path in (REPOSITORY / root).rglob("*.py")]
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths}
    assert modules - set(result.stdout.splitlines()) == set()
