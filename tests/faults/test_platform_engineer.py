"""A platform engineer's first hour on four hosts, typed from docs/how-to/several-machines.md, with what goes wrong.

By day test_several_machines_page.py types the page with one node, and takes a token back.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.binaries import require_program
from tests.support.clusters import ROOT
from tests.support.harbor_stack import TASKS, tasks_registry
from tests.support.host_load import DONE
from tests.support.hosts import Host, hosts_of
from tests.support.measurements import Measured
from tests.support.root_filesystems import require_overlays
from tests.support.typed_page import Machine, blocks
from tests.support.waiting import block_until

pytestmark = pytest.mark.timeout(400)
_NODES = ("node-1", "node-2")
# The last one has a Dockerfile.
_TASKS = ("three-files", "use-variables", "find-word")
_TRAJECTORIES, _STEPS = 9, 60
_LOST = "INFRA state_lost"
# `ssh` and `scp` between the hosts, whose homes are directories of one machine.
_BEFORE = """
ssh() { (cd HOMES/$1; eval "$2"); }
scp() { local to=${!#}; cp -p "${@:1:$#-1}" HOMES/${to%%:*}/${to#*:}; }
HOST=ADDRESS
[ ! -d callsheet ] || cd callsheet
"""


class Hour:
    """The hosts, and what runs there."""

    def __init__(self, hosts: list[Host], directory: Path, running: ExitStack) -> None:
        homes, address = directory / "machines", hosts[0].address
        here = {"/var/lib/callsheet": str(homes / "scheduler" / "callsheet"), "scheduler.example.org": address}
        before = _BEFORE.replace("HOMES", str(homes)).replace("ADDRESS", address)
        self.machines = {each.name: Machine(homes / each.name, here, each.inside(), before) for each in hosts}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._running = running
        (self._scheduler,) = blocks("The scheduler")
        self._manager = next(each for each in blocks("Managers") if each.startswith("callsheet manager sandbox"))
        submit, status = blocks("Clients")
        self._variables, self._submit = submit.splitlines(keepends=True)
        self._status, self._audit = status.splitlines(keepends=True)

    def prepare(self) -> None:
        """Types the first section, and its lines for one machine again for the other."""
        prepare, copy = blocks("Certificates and tokens")
        scheduler = self.machines["scheduler"]
        scheduler.run(prepare + copy)
        lines = prepare.splitlines(keepends=True)
        again = "".join(line for line in lines if line.startswith("umask") or "$NODE-" in line)
        scheduler.run(f"NODE={_NODES[1]}\n{again}{copy}")
        scheduler.run("ssh trainer 'umask 077; mkdir -p callsheet'\nscp ca.pem my-job.token trainer:callsheet/\n")

    def start(self, name: str, registry: str = "") -> None:
        """Starts the scheduler, or the manager of a node, and waits until it serves."""
        block = self._scheduler if name == "scheduler" else self._manager
        options = f" --registry {registry} --build-images --builds-for jobs" if registry else ""
        process = self._running.enter_context(self.machines[name].running(f"{block.rstrip()}{options}"))
        self.processes[name] = process
        block_until(self._answers if name == "scheduler" else lambda: f"{name}-sandbox" in self.managers())

    def kill(self, name: str) -> None:
        """Sends SIGKILL."""
        self.processes[name].kill()
        self.processes[name].wait()

    def managers(self) -> dict[str, Any]:
        """The managers that are registered, by their ids."""
        found = json.loads(self.operate(f"{self._status.rstrip()} --json"))
        return {each["manager_id"]: each for each in found["managers"]}

    def operate(self, block: str, *, succeeds: bool | None = True) -> str:
        """Types a line with the administrator's token."""
        return self.machines["scheduler"].run(
            f"{self._variables}export CALLSHEET_TOKEN_FILE=admin.token CALLSHEET_TOKENS=tokens.json\n{block}",
            succeeds=succeeds,
        )

    def submit(self) -> str:
        """Types the trainer's line."""
        return self.machines["trainer"].run(self._variables + self._submit, succeeds=None)

    def under_load(self, fault: Callable[[], object]) -> Counter[str]:
        """Does something while the trainer's trajectories have sandboxes; returns how many became of each kind."""
        trainer = self.machines["trainer"]
        result = trainer.home / "result.json"
        result.unlink(missing_ok=True)
        program = f"python -m tests.support.host_load $CALLSHEET_SCHEDULER my-job {_TRAJECTORIES} {_STEPS} {result}"
        block = f"env PYTHONPATH={ROOT} CALLSHEET_TLS_CA=ca.pem CALLSHEET_TOKEN_FILE=my-job.token {program}"
        with trainer.running(block.replace("$CALLSHEET_SCHEDULER", "$HOST:7077")) as load:
            block_until(lambda: sum(each["sandboxes"] for each in self.managers().values()) == _TRAJECTORIES)
            fault()
            block_until(lambda: load.poll() is not None)
        became = Counter(json.loads(result.read_text()).values())
        assert sum(became.values()) == _TRAJECTORIES
        return became

    def revoke(self, note: Measured) -> str:
        """Revokes the token of the trainer's job, which is refused from then on; returns what the audit tells then."""
        tokens = json.loads(self.operate("callsheet token list --json"))["tokens"]
        (token,) = (each["token_id"] for each in tokens if each["subject"] == "my-job")
        revoked = self.operate(f"callsheet token revoke {token}")
        refused = self.submit()
        note(f"{revoked.strip()}; then: {refused.strip()}")
        assert "UNAUTHENTICATED" in refused
        acts = self.operate(self._audit)
        note(acts)
        return acts

    def scores(self, tasks: Path) -> str:
        """Harbor's tasks with the token of the trainer's job."""
        options = f"--task-option path={tasks} --task-option network=none --policy callsheet.environments.harbor:oracle"
        return self.machines["trainer"].run(f"{self._variables}callsheet eval harbor --job my-job {options}")

    def _answers(self) -> bool:
        return "UNAVAILABLE" not in self.operate(self._status, succeeds=None)


@pytest.mark.nightly
def test_the_first_hour(tmp_path: Path, measured: Measured) -> None:
    require_overlays()
    require_program("buildah")
    names = ("scheduler", *_NODES, "trainer")
    tasks = tmp_path / "tasks"
    for name in _TASKS:
        shutil.copytree(TASKS / name, tasks / name)
    with hosts_of(names, tmp_path) as hosts, ExitStack() as running:
        with hosts[1].entered():
            registry = running.enter_context(tasks_registry(tmp_path))
        hour = Hour(hosts, tmp_path, running)
        hour.prepare()
        hour.start("scheduler")
        for name in _NODES:
            hour.start(name, registry.address if name == "node-1" else "")
        assert "hello from " in hour.submit()

        became = hour.under_load(lambda: hour.operate("callsheet drain node-2-sandbox --deadline 1"))
        measured(f"drain with a deadline under load: {dict(became)}")
        assert set(became) <= {DONE, _LOST}
        assert 0 < became[_LOST] < _TRAJECTORIES
        assert hour.managers().keys() == {"node-1-sandbox"}

        scores = hour.scores(tasks)
        measured(f"scores with the token of a job: {scores}")
        assert "100.0%" in scores

        def restart() -> None:
            hour.kill("scheduler")
            hour.start("scheduler")

        became = hour.under_load(restart)
        measured(f"SIGKILL of the scheduler under load, and a new start: {dict(became)}")
        assert became == {DONE: _TRAJECTORIES}

        hour.start("node-2")
        became = hour.under_load(lambda: hour.kill("node-1"))
        measured(f"SIGKILL of a manager under load: {dict(became)}")
        assert set(became) <= {DONE, _LOST}
        assert 0 < became[_LOST] < _TRAJECTORIES

        acts = hour.revoke(measured)
        for act in ("issue", "drain", "close", "revoke"):
            assert f"act={act} " in acts
