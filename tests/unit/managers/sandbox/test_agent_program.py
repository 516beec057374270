"""What of the agent's program is handed to sandboxes."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from callsheet.managers.sandbox.agent_client.program import AGENT_START, COMPILED_START, agent_files
from callsheet.managers.sandbox.isolation.bubblewrap import find_system_python


def test_the_python_of_sandboxes_compiles_nothing_at_the_start_of_the_agent(tmp_path: Path) -> None:
    python = find_system_python()
    if python is None:
        pytest.skip("a python3 of the system is missing")
    package = tmp_path / "agent"
    package.mkdir()
    for name, content in agent_files(python).items():
        # Whatever is compiled from its text gives itself away.
        (package / name).write_bytes(b"raise AssertionError(__file__)\n" if name.endswith(".py") else content)
    # It begins in earnest, and finds that standard input is no socket.
    started = [str(python), "-I", "-S", "-X", "importtime", str(package / COMPILED_START), "0", "/", "/"]
    ended = subprocess.run(started, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert b"non-socket" in ended.stderr
    loaded = {line.split(b"|")[-1].strip() for line in ended.stderr.splitlines()}
    assert b"agent.loop" in loaded
    # What comes with it would be half of the memory of its own modules.
    assert b"collections" not in loaded


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
