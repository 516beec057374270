"""The agent's program as the manager hands it to a sandbox, see `callsheet.managers.sandbox.agent`."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from threading import Lock

import structlog

AGENT_DIRECTORY = Path(__file__).parent.with_name("agent")
# What Python runs. It could run the directory, and would take twice as long to start.
AGENT_START = "__main__.py"

# What is imported before the agent serves: each file costs a descriptor and a copy.
_IMPORTED = frozenset(
    {
        "__init__",
        "asking",
        "clearing",
        "domains",
        "files",
        "loop",
        "netlink",
        "network",
        "paths",
        "processes",
        "shared_memory",
        "slim",
        "trees",
    }
)
_COMPILE_SECONDS = 60.0

_log = structlog.get_logger(__name__)


_making = Lock()


def agent_files(python: Path) -> Mapping[str, bytes]:
    """Returns the contents of the agent's files by name. All of them belong into one directory, named "agent".

    Blocks for some 0.1 s at first. What `python` makes of the files comes with them, so that not every sandbox has to
    compile them again; another Python passes it over.
    """
    with _making:  # The first sandboxes of a storm would each compile them.
        return _agent_files(python)


@cache
def _agent_files(python: Path) -> Mapping[str, bytes]:
    files = {path.name: path.read_bytes() for path in sorted(AGENT_DIRECTORY.glob("*.py"))}
    return {**files, **_compiled(python, files)}


def _compiled(python: Path, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Returns the files of `__pycache__`; none if they cannot be made."""
    with tempfile.TemporaryDirectory(prefix="callsheet-agent-") as directory:
        for name, content in files.items():
            Path(directory, name).write_bytes(content)
        # Unchecked, as the times of files differ from sandbox to sandbox.
        options = ("-q", "-d", AGENT_DIRECTORY.name, "--invalidation-mode", "unchecked-hash")
        try:
            subprocess.run(
                [str(python), "-I", "-S", "-m", "compileall", *options, directory],
                check=True,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=_COMPILE_SECONDS,
            )
        except (OSError, subprocess.SubprocessError) as error:
            _log.warning("agent_not_compiled", python=str(python), error=str(error))
            return {}
        made = sorted(Path(directory, "__pycache__").glob("*.pyc"))
        return {f"__pycache__/{path.name}": path.read_bytes() for path in made if path.stem.split(".")[0] in _IMPORTED}
