"""The same task for TRL's own loop of tools: one call after another, in the trainer's process."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from examples.training.filters import CONTENTS, CRASHED, UNKNOWN, check, score, script
from examples.training.measuring import Measured
from examples.training.work import Load

_NUMBERS = itertools.count()


class FiltersForTrl:
    """One environment of TRL's; it is used again for each batch.

    Args:
        load: How environments behave.
        measured: Is told how long actions take.
    """

    def __init__(self, load: Load, measured: Measured) -> None:
        self._load = load
        self._measured = measured
        self._place = Path(tempfile.mkdtemp(prefix="filters-"))
        self._ran = False

    def reset(self, **row: Any) -> None:
        """Writes the file."""
        with self._measured.action("env_reset"):
            shutil.rmtree(self._place, ignore_errors=True)
            self._place.mkdir()
            (self._place / "in").write_text(CONTENTS[row["number"]], encoding="utf-8")
        self._ran = False

    def filter(self, command: str) -> str:
        """
        Sends the file through a command.

        Args:
            command: The command.

        Returns:
            What it says.
        """
        with self._measured.action("env_step"):
            # An environment that crashed is tried once more.
            for _ in range(2):
                code, heard = self._run(script(command, self._load, f"tools/{next(_NUMBERS)}"), self._load.limit_s)
                if code != CRASHED:
                    break
        self._ran = code == 0 and heard != UNKNOWN
        return heard

    def get_reward(self) -> float:
        """The score."""
        with self._measured.action("reward"):
            passes = self._run(check(), self._load.limit_s)[0] == 0
        return score(self._ran, float(passes))

    def _run(self, command: str, limit_s: float) -> tuple[int, str]:
        process = subprocess.Popen(
            ["sh", "-c", command], cwd=self._place, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return -signal.SIGKILL, ""
        return process.returncode, said.strip()
