"""What `make agents` takes for a run that failed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from callsheet.client import PromptDrift, SampledTurn, TrainingSample, TrajectorySamples

from scripts.programs.agent_run import faults
from scripts.programs.agents import AGENTS, AgentToRun

AGENT = AGENTS["codex"]


def told(agent: AgentToRun) -> TrajectorySamples:
    """Samples of a run in which all went well: two tokens a prompt, one a reply."""
    numbers = tuple(range(len(agent.replies)))
    turns = tuple(SampledTurn(n, n - 1 if n else None, PromptDrift.CLEAN, "", 2, 1) for n in numbers)
    mask = (0, 0, 1) * len(numbers)
    rows = tuple(0.0 if one else None for one in mask), tuple(0 if one else None for one in mask)
    return TrajectorySamples((TrainingSample(tuple(range(len(mask))), mask, *rows, numbers),), turns)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / AGENT.file).write_text(AGENT.content, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
def test_no_two_agents_have_the_same_replies(agent: AgentToRun) -> None:
    assert [other.name for other in AGENTS.values() if other.file in agent.task] == [agent.name]


def test_a_whole_run_passes(work: Path) -> None:
    assert faults(AGENT, 0, work, told(AGENT)) == []


def test_an_agent_that_wrote_nothing_fails(tmp_path: Path) -> None:
    assert faults(AGENT, 1, tmp_path, told(AGENT)) == [
        "exit code 1",
        f"{AGENT.file} is not there, or has other content",
    ]


def test_a_missing_turn_and_a_branch_fail(work: Path) -> None:
    whole = told(AGENT)
    fork = replace(whole.turns[-1], drift=PromptDrift.FORKED, reason="other text")
    broken = TrajectorySamples((*whole.samples, *whole.samples), (*whole.turns[1:-1], fork))
    found = faults(AGENT, 0, work, broken)
    assert found == ["3 turns, not 4", "turn 3 forked: other text", "2 samples, not one with all turns"]


def test_a_token_that_is_trained_on_twice_fails(work: Path) -> None:
    whole = told(AGENT)
    twice = replace(whole.samples[0], loss_mask=(1,) * len(whole.samples[0].loss_mask))
    assert faults(AGENT, 0, work, replace(whole, samples=(twice,))) == [
        "the sample does not have each sampled token once"
    ]
