"""What of the agent's program is handed to sandboxes."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from callsheet.managers.sandbox.agent_client.program import AGENT_START, agent_files
from callsheet.managers.sandbox.isolation.bubblewrap import find_system_python


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


def test_sandboxes_that_begin_at_once_have_it_compiled_once(tmp_path: Path) -> None:
    python, calls = tmp_path / "python", tmp_path / "calls"
    python.write_text(f"#!/bin/sh\necho call >> {calls}\n")
    python.chmod(0o755)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(agent_files, [python] * 8))
    assert calls.read_text() == "call\n"
