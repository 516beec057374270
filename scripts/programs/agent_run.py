"""Runs one agent through a gateway, and checks that its work and its samples are whole; run by scripts/others.py.

The agent is given a task, a base URL and a key, and nothing else of Callsheet. The model is a script: it looks around,
writes a file and ends. An agent passes if the file is there, and if its trajectory has all turns in one sample whose
prompts were never rendered anew. It runs its commands without a sandbox, as the script determines what these are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from callsheet.client import ClientOptions, GatewayAccess, PromptDrift, TrajectorySamples
from callsheet.client.sync import SyncClient

from scripts.programs.agents import AGENTS, AgentToRun

AGENT_TIMEOUT_S = 300


def run(agent: AgentToRun, access: GatewayAccess, place: Path) -> tuple[int, Path]:
    """Runs an agent in an empty directory; returns its exit code and that directory."""
    work, home = place / "work", place / "home"
    for directory in (work, home):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    command = agent.command(place, home, access)
    # Shells set PWD, and some agents go by it.
    common = {"NO_PROXY": "127.0.0.1", "PWD": str(work)}
    variables = {**os.environ, **common, **access.environment(), **agent.environment(home)}
    with (place / "agent.log").open("wb") as log:
        done = subprocess.run(
            command,
            cwd=work,
            env=variables,
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


def main(name: str, place: Path) -> int:
    """Runs an agent; returns 1 if it failed."""
    agent, options = AGENTS[name], ClientOptions(gateway=os.environ["CALLSHEET_GATEWAY"])
    client = SyncClient(os.environ["CALLSHEET_TARGET"], options)
    with client, client.open_job("agents") as job, job.trajectory(name) as trajectory:
        exit_code, work = run(agent, trajectory.gateway(), place)
        told = trajectory.samples()
    wrong = faults(agent, exit_code, work, told)
    tokens = sum(len(sample.token_ids) for sample in told.samples)
    print(
        f"{name}: {'; '.join(wrong) or 'ok'} ({len(told.turns)} turns, {len(told.samples)} sample of {tokens} tokens)"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
