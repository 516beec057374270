"""`callsheet up` as a user runs it, and the commands that talk to it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import anyio
import psutil
import pytest
from callsheet.client import Client, ClientOptions, Sampling, Where
from callsheet.managers.sandbox.probe import probe_bubblewrap
from typer.testing import Result

from tests.support.chrome_traces import faults_of, place_of
from tests.support.command_line import invoke
from tests.support.grpc_loops import runs_in_an_open_loop
from tests.support.servers import redis_server
from tests.support.waiting import block_until

_CALLSHEET = (sys.executable, "-m", "callsheet.cli.main")
_UP = (*_CALLSHEET, "up", "--json", "--listen", "127.0.0.1:0")
_START_S = 100.0
_STOP_S = 40.0
_BANNER = "NOT ISOLATED: with --isolation none"


class RunningStack:
    """A `callsheet up` that said that it is up.

    Attributes:
        early: What the first actions came to, which were submitted before there was any manager.
    """

    def __init__(self, process: subprocess.Popen[str], announcement: dict[str, Any]) -> None:
        self.process = process
        self.announcement = announcement
        self.early: list[dict[str, Any]] = []

    def run(self, command: str, *arguments: str) -> Result:
        """Runs another command against it, in this process."""
        return invoke(*command.split(), "--scheduler", str(self.announcement["address"]), *arguments)

    def run_apart(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs another command against it, in a process of its own as a user does."""
        words = (*_CALLSHEET, *command.split(), "--scheduler", str(self.announcement["address"]), *arguments)
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=_START_S)

    def json(self, command: str, *arguments: str) -> dict[str, Any]:
        """Runs another command with --json, and returns what it printed."""
        result = self.run(command, "--json", *arguments)
        assert result.exit_code in {0, 1}, result.stderr
        printed: dict[str, Any] = json.loads(result.stdout)
        return printed


def start(data_dir: Path, stderr: IO[str]) -> subprocess.Popen[str]:
    return subprocess.Popen([*_UP, "--data-dir", str(data_dir)], stdout=subprocess.PIPE, stderr=stderr, text=True)


def stop(process: subprocess.Popen[str], number: signal.Signals) -> None:
    process.send_signal(number)
    try:
        process.wait(_STOP_S)
    finally:
        process.kill()
        process.communicate()


def read_announcement(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    announcement: dict[str, Any] = json.loads(process.stdout.readline())
    return announcement


def wait_for_managers(stack: RunningStack, count: int) -> dict[str, Any]:
    """Waits until so many managers have registered; returns the scheduler's status."""
    deadline = time.monotonic() + _START_S
    logs = Path(stack.announcement["data_dir"]) / "logs"
    while sum('"registered"' in log.read_text() for log in logs.glob("*.log")) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while len((status := stack.json("status"))["managers"]) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return status


@pytest.fixture(scope="module")
def whole_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    probe = probe_bubblewrap()
    if not probe.works:
        pytest.skip(f"bubblewrap does not work here: {probe.reason}")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a second core is missing: the engine keeps one for itself")
    data_dir, said = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("said") / "stderr"
    with said.open("w") as stream:
        process = start(data_dir, stream)
    try:
        stack = RunningStack(process, read_announcement(process))
        stack.early = [stack.json("submit env-step", "--", "true"), stack.json("submit generate", "hello")]
        yield stack
    finally:
        stop(process, signal.SIGINT)  # as Ctrl-C does; a drain, below, ends by SIGTERM
    assert process.returncode == 0
    assert last_event(data_dir, "sandbox") == "left"
    assert _BANNER not in said.read_text() + (data_dir / "logs" / "sandbox.log").read_text()


def last_event(data_dir: Path, role: str) -> str:
    return str(json.loads((data_dir / "logs" / f"{role}.log").read_text().splitlines()[-1])["event"])


def test_a_script_that_starts_with_the_scheduler_waits_for_the_managers(whole_stack: RunningStack) -> None:
    step, generated = whole_stack.early
    assert (step["outcome"], step["value"]["exit_code"]) == ("succeeded", 0)
    assert generated["outcome"] == "succeeded"
    explained = whole_stack.run("explain", step["action_id"], "--job", step["job_id"])
    assert explained.exit_code == 0, explained.stderr


async def _one_rollout(address: str) -> None:
    async with (
        Client(address, ClientOptions()) as client,
        await client.open_job("traced") as job,
        job.group("g", size=1).trajectory("t") as trajectory,
    ):
        (await trajectory.env_reset()).unwrap()
        (await trajectory.generate([1, 2, 3], Sampling(max_new_tokens=4))).unwrap()
        (await trajectory.env_step("true", label="edit")).unwrap()
        scoring = "echo 1 > score"
        (await trajectory.reward_script(scoring, score_file="score", where=Where.IN_SANDBOX)).unwrap()


def test_a_rollout_is_traced_for_perfetto(whole_stack: RunningStack, tmp_path: Path) -> None:
    with runs_in_an_open_loop():
        anyio.run(_one_rollout, str(whole_stack.announcement["address"]))
    # The job is closed by now.
    told = whole_stack.json("trace", "traced", "-o", str(tmp_path / "run.json"))
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert told["events"] == len(events)
    assert list(faults_of(events)) == []
    ran = [each for each in events if each["ph"] == "X" and place_of(events, each).startswith(("engine", "node"))]
    in_order = sorted(ran, key=lambda each: int(each["ts"]))
    assert [each["name"] for each in in_order] == ["env_reset", "generate", "env_step edit", "reward"]
    assert [each["ph"] for each in events if each["ph"] in "sf"] == ["s", "f"] * 3
    generated = in_order[1]["args"]
    assert (generated["group"], generated["output_tokens"], generated["policy_versions"]) == ("g", 4, [0])
    assert generated["usage"]["cost"]["used"]["tokens_out"] == 4.0
    assert in_order[3]["args"]["score"] == 1.0
    unknown = whole_stack.run("trace", "unknown", "-o", str(tmp_path / "none.json"))
    assert (unknown.exit_code, "job_id" in unknown.stderr) == (1, True)
    assert not (tmp_path / "none.json").exists()


def test_all_managers_share_one_node(whole_stack: RunningStack) -> None:
    status = wait_for_managers(whole_stack, 3)
    assert len(status["nodes"]) == 1
    assert {manager["node_id"] for manager in status["managers"]} == {status["nodes"][0]["node_id"]}
    assert sorted(whole_stack.announcement["managers"]) == ["inference", "reward", "sandbox"]
    assert all(manager["connected"] for manager in status["managers"])


def test_the_gateway_serves_where_it_is_said_to(whole_stack: RunningStack) -> None:
    url = str(whole_stack.announcement["gateway"])
    deadline = time.monotonic() + _START_S
    while (health := whole_stack.run("health", "--gateway", url)).exit_code != 0:
        assert time.monotonic() < deadline, health.stderr
        time.sleep(0.05)
    assert health.stdout == "serving\n"


def test_the_dashboard_serves_where_it_is_said_to_and_shows_the_managers(whole_stack: RunningStack) -> None:
    url = str(whole_stack.announcement["dashboard"])
    deadline = time.monotonic() + _START_S
    while whole_stack.run("health", "--gateway", url).exit_code != 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with urllib.request.urlopen(f"{url}/now", timeout=_START_S) as answer:
        page = answer.read().decode()
    for manager in whole_stack.json("status")["managers"]:
        assert manager["manager_id"] in page


def test_a_step_prints_what_its_program_printed(whole_stack: RunningStack) -> None:
    outcome = whole_stack.json("submit env-step", "--", "python3", "-c", "print(40 + 2)")
    assert outcome["outcome"] == "succeeded"
    assert (outcome["value"]["exit_code"], outcome["value"]["stdout"]) == (0, "42\n")


def test_the_exit_code_of_a_step_can_be_that_of_the_command(whole_stack: RunningStack) -> None:
    failing = whole_stack.run_apart("submit env-step", "--exit-code", "--", "sh", "-c", "sleep 1.2; exit 7")
    assert failing.returncode == 7
    assert "callsheet: env_step running" in failing.stderr


def test_files_are_put_into_the_sandbox(whole_stack: RunningStack, tmp_path: Path) -> None:
    script = tmp_path / "greet.py"
    script.write_text("print('hello from a file')")
    result = whole_stack.run("submit env-step", "--file", str(script), "--", "python3", "greet.py")
    assert result.exit_code == 0, result.stderr
    assert "hello from a file" in result.stdout


def test_a_reset_is_set_up(whole_stack: RunningStack) -> None:
    result = whole_stack.run("submit env-reset", "--set-up", "echo prepared")
    assert result.exit_code == 0, result.stderr
    assert "prepared" in result.stdout


def test_a_timeout_is_a_failure_with_exit_code_1(whole_stack: RunningStack) -> None:
    result = whole_stack.run("submit env-step", "--timeout", "0.2", "--", "sleep", "60")
    assert result.exit_code == 1
    assert "failed: " in result.stdout
    assert "timeout" in result.stdout


def test_a_model_generates(whole_stack: RunningStack) -> None:
    outcome = whole_stack.json("submit generate", "--max-new-tokens", "4", "hello")
    assert outcome["outcome"] == "succeeded"
    assert len(outcome["value"]["token_ids"]) == len(outcome["value"]["log_probs"]) == 4


def test_both_rewards_score(whole_stack: RunningStack) -> None:
    assert whole_stack.json("submit reward-tests", "--file", __file__, "--", "true")["value"]["score"] == 1.0
    assert whole_stack.json("submit reward-tests", "--file", __file__, "--", "false")["value"]["score"] == 0.0
    assert isinstance(whole_stack.json("submit reward-model", "hello")["value"]["score"], float)


def test_the_logs_are_where_its_data_is(whole_stack: RunningStack) -> None:
    logs = Path(whole_stack.announcement["data_dir"]) / "logs"
    roles = {"scheduler", "gateway", "dashboard", "sandbox", "inference", "reward"}
    assert {path.stem for path in logs.glob("*.log")} == roles


def test_an_action_that_nobody_serves_is_refused_in_one_line(whole_stack: RunningStack) -> None:
    result = whole_stack.run("submit tool-call", "weather", "today")
    assert result.exit_code == 1
    assert result.stderr.startswith("callsheet: FAILED_PRECONDITION")
    assert len(result.stderr.splitlines()) == 1
    refused = whole_stack.run("submit tool-call", "--json", "weather", "today")
    assert json.loads(refused.stdout)["error"]["field"] == "service"


def test_an_action_that_was_submitted_can_be_explained(whole_stack: RunningStack) -> None:
    outcome = whole_stack.json("submit reward-tests", "--file", __file__, "--", "true")
    job_id, action_id = outcome["job_id"], outcome["action_id"]
    for words in ((action_id,), (f"{job_id}/{action_id}",), (job_id, action_id), (job_id, f"{job_id}/{action_id}")):
        result = whole_stack.run("explain", *words)
        assert result.exit_code == 0, result.stderr
        assert f"reward {action_id} of job submit-" in result.stdout
        assert "it has its outcome: succeeded" in result.stdout


def test_an_unknown_action_cannot_be_explained(whole_stack: RunningStack) -> None:
    for words in (("never-submitted",), ("no/such/action",), ("no-job", "no-action")):
        result = whole_stack.run("explain", *words)
        assert result.exit_code == 1
        assert result.stderr.startswith("callsheet: NOT_FOUND")
    assert whole_stack.run("explain", "a", "b", "c").exit_code == 2


def test_status_is_readable(whole_stack: RunningStack) -> None:
    result = whole_stack.run("status")
    assert result.exit_code == 0, result.stderr
    assert "Managers" in result.stdout
    assert "Nodes" in result.stdout


def test_a_broken_isolation_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLSHEET_BWRAP", str(tmp_path / "no-such-program"))
    result = invoke("up", "--managers", "sandbox", "--data-dir", str(tmp_path))
    assert result.exit_code == 1
    assert "bubblewrap cannot isolate sandboxes here: there is no bwrap program" in result.stderr
    assert "--isolation none" in result.stderr


def test_a_data_directory_is_held_by_one(whole_stack: RunningStack) -> None:
    words = [*_UP, "--managers", "noop", "--data-dir", str(whole_stack.announcement["data_dir"])]
    second = subprocess.run(words, capture_output=True, text=True, timeout=_START_S, check=False)
    assert second.returncode == 1
    assert "callsheet: scheduler ended before it was ready" in second.stderr


def managers_of(process: subprocess.Popen[str]) -> dict[str, psutil.Process]:
    found = {}
    for each in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "manager" in (line := each.cmdline()):
                found[line[line.index("manager") + 1]] = each
    return found


@pytest.fixture
def secret_redis() -> Iterator[str]:
    """The URL of a Redis that has a password."""
    with redis_server("--requirepass", "hidden") as url:
        yield url.replace("unix://", "unix://:hidden@")


def test_options_reach_managers_and_no_secret_a_command_line_and_a_drain_shows_what_it_waits_for(
    tmp_path: Path, secret_redis: str
) -> None:
    tools, config, data_dir = tmp_path / "tools.toml", tmp_path / "callsheet.toml", tmp_path / "data"
    tools.write_text("[tools.environment]\nfunction = 'os:getenv'\n")
    config.write_text(f"[up]\ntools-file = '{tools}'\nquota_namespace = 'of the file'\nwarm_memory_mib = 7\n")
    options = ("--managers", "sandbox,tools", "--isolation", "none", "--warm-memory-mib", "0", "--drain-s", "5")
    secret = ("--quota-redis", secret_redis)
    command = (*_CALLSHEET, "--config", str(config), *_UP[len(_CALLSHEET) :], "--data-dir", str(data_dir))
    process = subprocess.Popen([*command, *options, *secret], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        stack = RunningStack(process, read_announcement(process))
        block_until(lambda: managers_of(process).keys() >= {"sandbox", "tools"})
        sandbox, toolbox = managers_of(process)["sandbox"], managers_of(process)["tools"]
        assert "--warm-memory-mib 0" in " ".join(sandbox.cmdline())
        assert "--quota-namespace of the file" in " ".join(toolbox.cmdline())
        assert "hidden" not in " ".join(toolbox.cmdline())
        assert toolbox.environ()["CALLSHEET_QUOTA_REDIS"] == secret[1]
        assert not sandbox.environ().get("CALLSHEET_QUOTA_REDIS")
        submit = (*_CALLSHEET, "submit", "env-step", "--scheduler", str(stack.announcement["address"]))
        step = subprocess.Popen([*submit, "--", "sleep", "30"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _START_S
        while not any(manager["attempts"] and manager["sandboxes"] for manager in stack.json("status")["managers"]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        shown = process.communicate(timeout=_STOP_S)[1]
        step.kill()
        step.communicate()
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert "callsheet: sandbox manager is ready after " in shown
    assert re.search(r"callsheet: waiting for 1 attempt, \d s left", shown)
    # Where nothing keeps commands in, `up` and its manager say so, once.
    assert shown.count(_BANNER) == (data_dir / "logs" / "sandbox.log").read_text().count(_BANNER) == 1
