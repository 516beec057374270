"""The lines of docs/how-to/several-machines.md as they stand, from nothing; all machines are this one."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.support.ports import free_port
from tests.support.waiting import block_until

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "several-machines.md"
_TIMEOUT_S = 120
_ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    **({} if shutil.which("bwrap") else {"CALLSHEET_ISOLATION": "none"}),
}


def blocks(section: str) -> list[str]:
    """The blocks of commands in a section."""
    text = re.split(r"^## ", _PAGE.read_text(), flags=re.MULTILINE)
    (body,) = [each for each in text if each.startswith(f"{section}\n")]
    found = re.findall(r"(?:^    .*\n)+", body, re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in found]


def listens(port: int) -> bool:
    """Whether something does on this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Page:
    """Runs blocks for this machine, each by a shell of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "callsheet"
        self.port = free_port()
        self._here = {
            "/var/lib/callsheet": str(self.directory),
            "scheduler.example.org": "localhost",
            "node-1": socket.gethostname(),
            "7077": str(self.port),
        }
        self._environment = {**_ENVIRONMENT, "HOME": str(directory), "CALLSHEET_DATA_DIR": str(directory / "managers")}

    def script(self, block: str, before: str = "") -> list[str]:
        for there, here in self._here.items():
            block = block.replace(there, here)
        return ["bash", "-euc", f"{before}{block}"]

    def run(self, block: str, before: str = "") -> str:
        command = self.script(block, before)
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, (block, done.stdout, done.stderr)
        return done.stdout

    @contextmanager
    def running(self, block: str) -> Iterator[None]:
        with (self.directory.parent / "log").open("ab") as log:
            command = self.script(block, f"HOST=localhost; cd {self.directory}; exec ")
            with subprocess.Popen(command, env=self._environment, stdout=log, stderr=log) as process:
                try:
                    yield
                finally:
                    process.terminate()


def test_the_page_works_from_nothing_when_it_is_typed_literally(tmp_path: Path) -> None:
    page = Page(tmp_path)
    prepare, _ = blocks("Certificates and tokens")
    page.run(prepare)
    made = {path.name: path for path in page.directory.iterdir()}
    tokens = {f"{name}.token" for name in ("admin", "sandbox", "inference", "reward", "tools", "my-job")}
    assert made.keys() >= tokens | {"ca.pem", "ca.key", "server.pem", "server.key", "tokens.json"}
    assert [name for name, path in made.items() if path.stat().st_mode & 0o077] == []
    (scheduler,) = blocks("The scheduler")
    sandbox = next(block for block in blocks("Managers") if block.startswith("callsheet manager sandbox"))
    submit, status = blocks("Clients")
    with ExitStack() as running:
        running.enter_context(page.running(scheduler))
        block_until(partial(listens, page.port))
        running.enter_context(page.running(sandbox))
        before = f"HOST=localhost; cd {page.directory}; "
        assert "hello from " in page.run(submit, before)
        environment = submit.splitlines(keepends=True)[0]
        assert "sandbox" in page.run(environment + status, before)
    acts = page.run("callsheet audit --data-dir /var/lib/callsheet --tokens /var/lib/callsheet/tokens.json")
    assert acts.count("act=issue") == 6
    assert "act=close scope=job subject=my-job" in acts
