"""Runs agents as they are published through a gateway, and looks whether their work and their samples are whole.

    scripts/agents.py                 all of them
    scripts/agents.py codex openai    some

Each agent is given a task, a base URL and a key, and nothing else of Callsheet. The model is a script: it looks around,
writes a file and ends. An agent passes if the file is there, and if its trajectory has all turns in one sample whose
prompts were never rendered anew. Agents are installed below build/agents: from PyPI in environments of their own, and
from npm, which needs Node 20. They run their commands without a sandbox, as the script says what these are.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from callsheet.client import ClientOptions, GatewayAccess, PromptDrift, TrajectorySamples  # noqa: E402
from callsheet.client.sync import SyncClient  # noqa: E402

from scripts.agents_to_run import AGENTS, PLACE, AgentToRun  # noqa: E402
from tests.support.ports import free_port  # noqa: E402

READY_TIMEOUT_S = 120
AGENT_TIMEOUT_S = 300
STOP_TIMEOUT_S = 30


@contextmanager
def stack(script: Path) -> Iterator[tuple[str, str]]:
    """Runs a scheduler, a scripted engine and a gateway; gives the addresses of the scheduler and the gateway."""
    gateway = f"127.0.0.1:{free_port()}"
    data = PLACE / "data"
    shutil.rmtree(data, ignore_errors=True)
    command = [str(Path(sys.executable).parent / "callsheet"), "up", "--json", "--data-dir", str(data)]
    command += ["--managers", "inference", "--listen", "127.0.0.1:0", "--gateway", gateway]
    command += ["--engine", "scripted", "--script", str(script)]
    with (PLACE / "up.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said:
            raise SystemExit(f"callsheet up ended; its log is {PLACE / 'up.log'}.")
        url = f"http://{gateway}"
        wait_ready(f"{url}/health")
        yield json.loads(said)["address"], url
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()


def wait_ready(url: str) -> None:
    """Waits until a server takes requests."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise SystemExit(f"{url} did not answer within {READY_TIMEOUT_S} s.")


def write_script(agents: Sequence[AgentToRun]) -> Path:
    """Writes what the model answers: the replies of each agent are for prompts with its task."""
    replies = [{"match": agent.file, "text": reply} for agent in agents for reply in agent.replies]
    path = PLACE / "script.json"
    path.write_text(json.dumps({"replies": replies}), encoding="utf-8")
    return path


def run(agent: AgentToRun, access: GatewayAccess) -> tuple[int, Path]:
    """Runs an agent in an empty directory; returns its exit code and that directory."""
    work, home = PLACE / "work" / agent.name, PLACE / "homes" / agent.name
    for directory in (work, home):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    command = agent.command(home, access)
    own: Mapping[str, str] = agent.environment(home)
    # Shells set PWD, and some agents go by it.
    common = {"NO_PROXY": "127.0.0.1", "PWD": str(work)}
    environment = {**os.environ, **common, **access.environment(), **own}
    with (PLACE / f"{agent.name}.log").open("wb") as log:
        done = subprocess.run(
            command,
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=AGENT_TIMEOUT_S,
            check=False,
        )
    return done.returncode, work


def faults(agent: AgentToRun, exit_code: int, work: Path, told: TrajectorySamples) -> list[str]:
    """What is wrong with an agent's run; nothing if it passes."""
    found: list[str] = []
    if exit_code:
        found.append(f"exit code {exit_code}")
    written = work / agent.file
    if not written.is_file() or written.read_text(encoding="utf-8") != agent.content:
        found.append(f"{agent.file} is not there, or has other content")
    if len(told.turns) != len(agent.replies):
        found.append(f"{len(told.turns)} turns, not {len(agent.replies)}")
    found += [
        f"turn {turn.turn} {turn.drift.value}: {turn.reason}"
        for turn in told.turns
        if turn.drift is not PromptDrift.CLEAN
    ]
    numbers = tuple(turn.turn for turn in told.turns)
    if [sample.turns for sample in told.samples] != [numbers]:
        found.append(f"{len(told.samples)} samples, not one with all turns")
    elif sum(told.samples[0].loss_mask) != sum(turn.reply_tokens for turn in told.turns):
        found.append("the sample does not have each sampled token once")
    return found


def main() -> int:
    """Runs the agents that are named; returns 1 if one failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("agents", nargs="*", choices=[[], *AGENTS], default=[])
    names = parser.parse_args().agents or list(AGENTS)
    agents = [AGENTS[name] for name in names]
    PLACE.mkdir(parents=True, exist_ok=True)
    for agent in agents:
        for command in agent.installation():
            subprocess.run(command, check=True)
    failed = False
    with stack(write_script(agents)) as (address, url):
        options = ClientOptions(gateway=url)
        with SyncClient(address, options) as client, client.open_job("agents") as job:
            for agent in agents:
                with job.trajectory(agent.name) as trajectory:
                    exit_code, work = run(agent, trajectory.gateway())
                    told = trajectory.samples()
                wrong = faults(agent, exit_code, work, told)
                failed = failed or bool(wrong)
                tokens = sum(len(sample.token_ids) for sample in told.samples)
                said = f"{len(told.turns)} turns, {len(told.samples)} sample of {tokens} tokens"
                print(f"{agent.name}: {'; '.join(wrong) or 'ok'} ({said})", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
