"""Runs the unit tests that need nothing which is not installed here, and some that start processes.

They start `callsheet up`, actions in sandboxes and `callsheet eval`.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

PROCESSES = (
    "tests/integration/test_private_data.py",
    "tests/integration/test_local_stack.py",
    "tests/integration/test_coding_tasks.py",
    "tests/faults/test_eval_kill.py",
)
# Packages that are heavy, or for development only, are not installed: files that import them are left out.
LEFT_OUT = ("aiohttp", "compose", "ray", "torch")


def importable(path: Path) -> bool:
    """Returns true for a file of tests that can be imported here.

    Raises:
        ModuleNotFoundError: It imports something that should be installed.
    """
    try:
        importlib.import_module(".".join(path.with_suffix("").parts))
    except ModuleNotFoundError as error:
        if error.name not in LEFT_OUT:
            raise
        return False
    return True


if __name__ == "__main__":
    files = [str(path) for path in sorted(Path("tests/unit").rglob("test_*.py")) if importable(path)]
    options = ["-q", "-n", "auto", "--dist", "loadfile", "-p", "no:cacheprovider"]
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *options, *files, *PROCESSES])
