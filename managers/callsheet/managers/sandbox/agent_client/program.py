"""The agent's program as the manager hands it to a sandbox, see `callsheet.managers.sandbox.agent`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from threading import Lock

import structlog

AGENT_DIRECTORY = Path(__file__).parent.with_name("agent")
# What Python runs. It could run the directory, and would take twice as long to start.
AGENT_START = "__main__.py"
COMPILED_START = "__main__.pyc"
BUNDLE = "bundle"

# Programs of their own, of which one is loaded by need.
_APART = frozenset({"archives", "python_session"})
_COMPILER = """
import importlib.util, marshal, pathlib, sys
start = pathlib.Path(sys.argv[1], "__main__.py")
code = marshal.dumps(compile(start.read_bytes(), start.name, "exec", optimize=2))
program = importlib.util.MAGIC_NUMBER + bytes(12) + code
files = [path for path in start.parent.glob("*.py") if path != start and path.stem not in sys.argv[2:]]
names = {path: "agent" if path.stem == "__init__" else f"agent.{path.stem}" for path in files}
codes = {name: compile(path.read_bytes(), path.name, "exec", optimize=2) for path, name in names.items()}
sys.stdout.buffer.write(len(program).to_bytes(4, "big") + program + marshal.dumps(codes))
"""
_COMPILE_SECONDS = 60.0

_log = structlog.get_logger(__name__)


_making = Lock()


def agent_files(python: Path) -> Mapping[str, bytes]:
    """Returns the contents of the agent's files by name. All of them belong into one directory, named "agent".

    Blocks for some 0.1 s at first. What `python` makes of the modules is in one file, so that not every sandbox has to
    copy and compile them again: no other Python can read it.
    """
    with _making:  # The first sandboxes of a storm would each compile them.
        return _agent_files(python)


@cache
def _agent_files(python: Path) -> Mapping[str, bytes]:
    files = {path.name: path.read_bytes() for path in sorted(AGENT_DIRECTORY.glob("*.py"))}
    compiled = _compiled(python)
    return {**{name: files[name] for name in files if Path(name).stem in _APART}, **compiled} if compiled else files


def _compiled(python: Path) -> Mapping[str, bytes]:
    """Returns the compiled program and the bundle of its modules; nothing if they cannot be compiled."""
    try:
        made = subprocess.run(
            [str(python), "-I", "-S", "-c", _COMPILER, str(AGENT_DIRECTORY), *_APART, "container"],
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_COMPILE_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("agent_not_compiled", python=str(python), error=str(error))
        return {}
    end = 4 + int.from_bytes(made.stdout[:4], "big")
    return {COMPILED_START: made.stdout[4:end], BUNDLE: made.stdout[end:]} if made.stdout else {}
