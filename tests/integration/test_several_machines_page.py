"""The lines of docs/how-to/several-machines.md as they stand, from nothing; all machines are this one."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.support.ports import free_port
from tests.support.typed_page import Machine, blocks
from tests.support.waiting import block_until


def listens(port: int) -> bool:
    """Whether something does on this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_page_works_from_nothing_when_it_is_typed_literally(tmp_path: Path) -> None:
    port, directory = free_port(), tmp_path / "callsheet"
    here = {
        "/var/lib/callsheet": str(directory),
        "scheduler.example.org": "localhost",
        "node-1": socket.gethostname(),
        "7077": str(port),
    }
    prepare, _ = blocks("Certificates and tokens")
    Machine(tmp_path, here).run(prepare)
    made = {path.name: path for path in directory.iterdir()}
    tokens = {f"{name}.token" for name in ("admin", "sandbox", "inference", "reward", "tools", "my-job")}
    assert made.keys() >= tokens | {"ca.pem", "ca.key", "server.pem", "server.key", "tokens.json"}
    assert [name for name, path in made.items() if path.stat().st_mode & 0o077] == []
    (scheduler,) = blocks("The scheduler")
    sandbox = next(block for block in blocks("Managers") if block.startswith("callsheet manager sandbox"))
    submit, status = blocks("Clients")
    machine = Machine(directory, here, before="HOST=localhost\n")
    with ExitStack() as running:
        running.enter_context(machine.running(scheduler))
        block_until(partial(listens, port))
        running.enter_context(machine.running(sandbox))
        assert "hello from " in machine.run(submit)
        assert "sandbox" in machine.run(submit.splitlines(keepends=True)[0] + status)
        file = "--tokens /var/lib/callsheet/tokens.json"
        tokens_now = json.loads(machine.run(f"callsheet token list --json {file}"))["tokens"]
        (token,) = (each["token_id"] for each in tokens_now if each["subject"] == "my-job")
        machine.run(f"callsheet token revoke {token} {file}")
        assert "UNAUTHENTICATED" in machine.run(submit, succeeds=None)
    acts = machine.run("callsheet audit --data-dir /var/lib/callsheet --tokens /var/lib/callsheet/tokens.json")
    assert acts.count("act=issue") == 6
    assert "act=close scope=job subject=my-job" in acts
    assert f"of_token={token}" in acts
