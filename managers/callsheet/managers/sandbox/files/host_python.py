"""The machine's own Python inside of images, which need neither a Python nor a C library for the agent to run."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path

from callsheet.managers.sandbox.errors import SandboxCreateError

_TRACE_SECONDS = 20.0
_LIBRARY = re.compile(r"\s(/\S+) \(0x[0-9a-f]+\)")
_SYSTEM = Path("/usr")


@cache
def python_below(python: Path, shown: str) -> tuple[str, ...]:
    """Returns the beginning of a command that runs a Python of this machine where its /usr is shown elsewhere.

    The Python is started by its own dynamic loader, as the one of the image may be of another kind or missing.

    Args:
        python: The Python, below /usr.
        shown: Where /usr is found.

    Raises:
        SandboxCreateError: Something that it needs lies outside /usr.
    """
    program = python.resolve()
    try:
        traced = subprocess.run(
            [str(program)],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_TRACE_SECONDS,
            env={"LD_TRACE_LOADED_OBJECTS": "1"},
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxCreateError(f"the libraries of {program} cannot be found: {error}") from error
    libraries = [Path(os.path.realpath(path)) for path in _LIBRARY.findall(traced)]
    loaders = [path for path in libraries if path.name.startswith(("ld-", "ld."))]
    outside = [str(path) for path in (program, *libraries) if not path.is_relative_to(_SYSTEM)]
    if outside or not loaders:
        raise SandboxCreateError(f"images need a Python whose libraries are all below /usr, not {outside or traced!r}")

    def seen(path: Path) -> str:
        return f"{shown}/{path.relative_to(_SYSTEM)}"

    directories = dict.fromkeys(seen(path.parent) for path in libraries)
    return (seen(loaders[0]), "--library-path", ":".join(directories), seen(program))
