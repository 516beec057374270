"""What of the agent's program is handed to sandboxes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from callsheet.managers.sandbox.agent_program import AGENT_START, agent_files
from callsheet.managers.sandbox.bubblewrap import find_system_python


def test_the_python_of_sandboxes_compiles_nothing_that_the_agent_imports_at_its_start(tmp_path: Path) -> None:
    python = find_system_python()
    if python is None:
        pytest.skip("a python3 of the system is missing")
    package = tmp_path / "agent"
    (package / "__pycache__").mkdir(parents=True)
    for name, content in agent_files(python).items():
        # Whatever is compiled from its text gives itself away.
        (package / name).write_bytes(content if name.endswith(".pyc") else b"raise AssertionError(__file__)\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import agent.loop"
    subprocess.run([str(python), "-I", "-S", "-c", code], check=True, timeout=60)


def test_without_a_compiler_the_agent_is_handed_over_as_it_is(tmp_path: Path) -> None:
    files = agent_files(tmp_path / "no-python")
    assert AGENT_START in files
    assert {Path(name).suffix for name in files} == {".py"}
