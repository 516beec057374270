"""import-linter sees every room of the namespace: each contract in pyproject.toml catches the import it forbids."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ROOTS = ("protos", "scheduler", "managers", "deploy", "clients", "benchmarks")
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
VIOLATIONS = [
    ("protos/callsheet/v1/violation.py", "import callsheet.client", "The contract's code stands alone"),
    (
        "protos/callsheet/timing/violation.py",
        "import anyio",
        "Backoff and deadlines, which all rooms share, need the standard library alone",
    ),
    ("clients/callsheet/client/violation.py", "import sqlalchemy", "The client needs the base install alone"),
    (
        "clients/callsheet/client/violation.py",
        "from callsheet.scheduler import core",
        "The client needs the base install alone",
    ),
    (
        "clients/callsheet/integrations/swerex/violation.py",
        "from callsheet.managers import node",
        "Integrations are clients",
    ),
    (
        "clients/callsheet/environments/violation.py",
        "import torch",
        "Environments are clients, and import neither a trainer nor a model",
    ),
    (
        "managers/callsheet/managers/violation.py",
        "from callsheet.scheduler.core import records",
        "Managers know neither the scheduler nor the client",
    ),
    ("deploy/callsheet/deploy/violation.py", "import ray", "Ray is imported by its provider alone"),
    (
        "clients/callsheet/client/violation.py",
        "from callsheet.deploy import stack",
        "The client needs the base install alone",
    ),
    (
        "clients/callsheet/cli/violation.py",
        "from callsheet.managers import node",
        "The command line reaches scheduler and managers through deployment",
    ),
    (
        "deploy/callsheet/options/violation.py",
        "from callsheet.managers import node",
        "Options are declared without knowing who declares them",
    ),
    (
        "deploy/callsheet/deploy/violation.py",
        "from callsheet.cli import output",
        "Deployment joins scheduler and managers and knows nothing above them",
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
        "from callsheet.scheduler.core import model",
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


def broken_contracts(sources: Path) -> set[str]:
    command = [sys.executable, "-c", LINT, str(REPOSITORY), str(sources), *ROOTS]
    result = subprocess.run(command, cwd=sources, capture_output=True, text=True, timeout=220, check=False)
    assert "Contracts:" in result.stdout, result.stdout + result.stderr
    return {line.partition(" BROKEN")[0] for line in result.stdout.splitlines() if " BROKEN" in line}


@pytest.mark.parametrize(("path", "statement", "contract"), VIOLATIONS)
def test_contract_catches_what_it_forbids(sources: Path, path: str, statement: str, contract: str) -> None:
    target = sources / "scheduler/callsheet/scheduler/planner/violation_target.py"
    violation = sources / path
    target.write_text("")
    violation.write_text(statement + "\n")
    try:
        assert contract in broken_contracts(sources)
    finally:
        target.unlink()
        violation.unlink()


def test_store_may_take_records(sources: Path) -> None:
    permitted = sources / "scheduler/callsheet/scheduler/store/permitted.py"
    permitted.write_text("from callsheet.scheduler.core import records\n")
    try:
        assert "The store takes nothing but records from the core" not in broken_contracts(sources)
    finally:
        permitted.unlink()


def test_every_module_is_seen() -> None:
    """A directory without __init__.py inside a package would be left out silently, and its imports unchecked."""
    result = subprocess.run([sys.executable, "-c", MODULES], capture_output=True, text=True, timeout=220, check=True)
    paths = [path.relative_to(REPOSITORY / root) for root in ROOTS for path in (REPOSITORY / root).rglob("*.py")]
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths}
    assert modules - set(result.stdout.splitlines()) == set()
