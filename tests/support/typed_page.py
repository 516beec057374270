"""The blocks of commands of docs/how-to/several-machines.md, to be typed as they stand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.clusters import ROOT

PAGE = ROOT / "docs" / "how-to" / "several-machines.md"
_TIMEOUT_S = 120
_STOP_S = 30
_ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    **({} if shutil.which("bwrap") else {"CALLSHEET_ISOLATION": "none"}),
}


def blocks(section: str) -> list[str]:
    """The blocks of commands in a section."""
    text = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (body,) = [each for each in text if each.startswith(f"{section}\n")]
    found = re.findall(r"(?:^    .*\n)+", body, re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in found]


class Machine:
    """Runs blocks on one machine, each by a shell of its own.

    Attributes:
        home: Home directory there.
    """

    def __init__(self, home: Path, here: Mapping[str, str], inside: Sequence[str] = (), before: str = "") -> None:
        """Notes how blocks are typed there.

        Args:
            home: Its home directory.
            here: What stands in the page, and what is typed for it here.
            inside: The command that runs another one on that machine.
            before: Lines that each shell begins with.
        """
        self.home = home
        self._here = here
        self._inside = tuple(inside)
        self._before = before
        self._environment = {**_ENVIRONMENT, "HOME": str(home), "CALLSHEET_DATA_DIR": str(home / "managers")}
        home.mkdir(parents=True, exist_ok=True)

    def run(self, block: str, *, succeeds: bool | None = True) -> str:
        """Returns the output of a block, errors included; it succeeds, fails or, by None, may do either."""
        done = subprocess.run(
            self._script(block),
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        assert succeeds in (None, done.returncode == 0), (block, done.stdout)
        return done.stdout

    @contextmanager
    def running(self, block: str) -> Iterator[subprocess.Popen[bytes]]:
        """Runs the one command of a block for the length of the context."""
        with (
            (self.home / "log").open("ab") as log,
            subprocess.Popen(self._script(f"exec {block}"), env=self._environment, stdout=log, stderr=log) as process,
        ):
            try:
                yield process
            finally:
                process.terminate()
                process.wait(_STOP_S)

    def _script(self, block: str) -> list[str]:
        for there, here in self._here.items():
            block = block.replace(there, here)
        return [*self._inside, "bash", "-euc", f"cd {self.home}\n{self._before}{block}"]
