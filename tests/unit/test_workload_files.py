"""Workload files: those that come with Callsheet are right, and a bad one is refused by field, value and rule."""

from __future__ import annotations

import pytest
from callsheet.benchmarks.simulator import workloads
from callsheet.benchmarks.simulator.input_table import InputError
from callsheet.benchmarks.simulator.workloads.loader import parse
from callsheet.scheduler.core.model import ActionKind, PriorityClass

_GOOD = """
trajectories = 8
horizon_s = 60
[cluster]
cores = 4
gpus = 2
model = [{ name = "judge", gpus = 2, restore_s = 0.5, load_s = 20 }]
quota = [{ name = "search", concurrency = 2, per_second = 5, burst = 5 }]
[[job]]
name = "small"
image = "job"
reward_mix = "judged"
[job.reset]
label = "reset"
duration_s = 1
use = 0.5
[[job.profile]]
name = "only"
turns = { uniform = [1, 3] }
generation = { seconds = { log_normal = [0.0, 0.5] }, output_tokens = 10, first_context = 100, context_growth = 10 }
[[job.profile.action]]
kind = "env_step"
label = "test"
duration_s = { quantiles = [[0.1, 1], [0.9, 10]] }
use = 0.8
[[job.profile.action]]
kind = "tool_call"
label = "search"
duration_s = 1
quota = "search"
[[job.rewards.judged]]
label = "judge"
duration_s = 1
services = { judge = 1 }
"""


def test_all_that_issue_names_are_there() -> None:
    assert workloads.names() == ("coding", "deepsearch", "games", "math", "mixed", "mopd")


@pytest.mark.parametrize("name", workloads.names())
def test_every_file_loads_under_its_name(name: str) -> None:
    workload = workloads.load(name)
    assert workload.name == name
    assert workload.jobs


def test_good_text_gives_its_parameters() -> None:
    (job,) = parse(_GOOD, "good").jobs
    assert [action.kind for action in job.profiles[0].actions] == [ActionKind.ENV_STEP, ActionKind.TOOL_CALL]
    assert [action.in_sandbox for action in job.profiles[0].actions] == [True, False]
    assert set(job.reward_mixes) == {"none", "judged"}
    assert job.reset is not None
    assert job.reset.in_sandbox


def test_mixed_takes_jobs_with_their_weights_and_priorities() -> None:
    jobs = {job.name: job for job in workloads.load("mixed").jobs}
    assert jobs["mopd"].weight == 2.0
    assert jobs["mopd"].priority is PriorityClass.EVAL
    assert jobs["coding"].priority is PriorityClass.TRAIN
    assert jobs["coding"].share == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("replaced", "by", "message"),
    [
        (
            "use = 0.8",
            "use = 1.5",
            r"bad\.job\[0\]\.profile\[0\]\.action\[0\]\.use: 1\.5: must be between 0\.001 and 1",
        ),
        ("use = 0.8", "", r"action\[0\]\.use: None: is required"),
        ("use = 0.8", "uses = 0.8\nuse = 0.8", r"action\[0\]\.uses: 0\.8: is unknown here; known are .*use"),
        ("horizon_s = 60", 'horizon_s = "long"', r"bad\.horizon_s: 'long': must be a finite number"),
        ("horizon_s = 60", "horizon_s = nan", r"bad\.horizon_s: nan: must be a finite number"),
        ("horizon_s = 60", "horizon_s = true", r"bad\.horizon_s: True: must be a finite number"),
        ("trajectories = 8", "trajectories = 8.5", r"bad\.trajectories: 8\.5: must be a whole number"),
        ('kind = "tool_call"', 'kind = "generate"', r"kind: 'generate': must be one of env_reset, env_step"),
        ("gpus = 2, restore_s", "gpus = 3, restore_s", r"model\[0\]\.gpus: 3: must be 1, 2, 4 or 8"),
        ("cores = 4\ngpus = 2", "cores = 4\ngpus = 1", r"cluster\.gpus: 1: must be at least 2"),
        ("services = { judge", "services = { jury", r"rewards\.judged\[0\]\.services: 'jury': must be a model"),
        ('quota = "search"', 'quota = "serch"', r"quota: 'serch': must be a quota of the cluster"),
        ("[1, 3]", "[3, 1]", r"turns\.uniform: \[3\.0, 1\.0\]: the first must not exceed the second"),
        (
            "{ uniform = [1, 3] }",
            "{ poisson = 3 }",
            r"turns: \{'poisson': 3\}: must be a number or a table with one of",
        ),
        ("[0.9, 10]", "[0.9, 0.5]", r"quantiles: .*: probabilities must rise and values must not fall"),
        ('image = "job"', 'image = "none"', r"job\[0\]\.image: 'none': must be \"none\" without reset"),
        ('reward_mix = "judged"', 'reward_mix = "jury"', r"reward_mix: 'jury': must be one of judged, none"),
        ("[cluster]", "cluster = 3\n[other]", r"bad\.cluster: 3: must be a table"),
        ("trajectories = 8", "trajectories =", r"bad: '\.\.\.': must be TOML: "),
    ],
)
def test_bad_text_is_refused(replaced: str, by: str, message: str) -> None:
    assert replaced in _GOOD
    with pytest.raises(InputError, match=message):
        parse(_GOOD.replace(replaced, by, 1), "bad")


def test_actions_in_a_sandbox_need_a_reset() -> None:
    text = _GOOD.replace('[job.reset]\nlabel = "reset"\nduration_s = 1\nuse = 0.5\n', "").replace('image = "job"', "")
    with pytest.raises(InputError, match=r"job\[0\]\.reset: None: is required, as actions run in a sandbox"):
        parse(text, "bad")


def test_unknown_workload_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"workload: 'codding': must be one of coding, deepsearch"):
        workloads.load("codding")
