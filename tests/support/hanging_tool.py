"""A tool of a tools manager that never answers, and leaves a file and a process of a session of its own."""

from __future__ import annotations

import subprocess
import tempfile
import time


def hang(seconds: str) -> None:
    """Leaves them, and waits for ever."""
    tempfile.mkdtemp(prefix="hanging-")
    with subprocess.Popen(["sleep", seconds], start_new_session=True):
        while True:
            time.sleep(1.0)
