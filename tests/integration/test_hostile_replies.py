"""Odd replies of a model through evaluations of each bundled environment, on a real stack."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from callsheet.benchmarks.demo.inputs import prepare_inputs
from callsheet.client import Client
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.environments.coding.packages import SourceReleaseError, default_cache_directory
from callsheet.evaluation.results import TrialResult
from callsheet.evaluation.run import Evaluation
from callsheet.evaluation.settings import EvaluationSettings

from tests.support.harbor_stack import TASKS, tasks_registry
from tests.support.hostile_replies import REFUSED, HostileTasks
from tests.support.root_filesystems import require_overlays

pytestmark = pytest.mark.anyio

_TASKS = "tests.support.hostile_replies:HostileTasks"
_HOSTILE = "tests.support.hostile_replies:hostile"
SEED = 7


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    require_overlays()
    try:
        inputs = prepare_inputs(default_cache_directory(os.environ), lambda _: None)
    except SourceReleaseError as error:
        pytest.skip(f"the environments' inputs: {error}")
    directory = tmp_path_factory.mktemp("hostile")
    (directory / "registry").mkdir()
    with tasks_registry(directory / "registry") as registry:
        arguments = {"sandbox": ["--registry", registry.address, "--stage", str(inputs.staged)]}
        settings = StackSettings(directory / "stack", managers=(Role.SANDBOX,), arguments=arguments)
        async with local_stack(settings) as stack:
            yield stack.address


async def evaluated(address: str, of: HostileTasks) -> list[TrialResult]:
    """Runs an evaluation; a policy that is told something else than the table says ends it."""
    given = {"environment_name": of.environment_name, "count": of.count, "seed": of.seed, "path": of.path}
    options = tuple(f"{name}={value}" for name, value in given.items())
    settings = EvaluationSettings(task_options=options, policy=_HOSTILE, max_turns=20, concurrency=4)
    async with Client(address) as client:
        return await Evaluation(_TASKS, settings).run(client)


@pytest.mark.parametrize(
    "of",
    [
        HostileTasks("coding", 10, SEED),
        HostileTasks("frozen-lake", 15, SEED),
        HostileTasks("harbor", 15, SEED, str(TASKS / "three-files")),
    ],
    ids=lambda of: of.environment_name,
)
async def test_an_odd_reply_is_told_and_the_episode_is_scored(address: str, of: HostileTasks) -> None:
    results = await evaluated(address, of)
    assert len(results) == len(of.episodes())
    assert {(each.status, each.lost) for each in results} == {("scored", ())}


async def test_an_odd_reply_to_the_pages_environment_is_a_score_or_the_policys_failure(address: str) -> None:
    of = HostileTasks("page", 15, SEED)
    results = await evaluated(address, of)
    found = {each.task: (each.status, (each.failure or {}).get("reason"), each.lost) for each in results}
    assert found == {
        f"hostile-{number}": ("failed", "bad_command", ()) if said.told == REFUSED else ("scored", None, ())
        for number, (said,) in enumerate(of.episodes())
    }
