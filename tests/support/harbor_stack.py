"""The tasks of examples/harbor on a real stack: images of a real registry, Dockerfiles built by a real buildah."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio.to_thread
from callsheet.client import Client
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.environments import PolicyFactory, TaskSet, run_batch

from tests.support.binaries import require_program
from tests.support.oci_images import Layout, Registry, archive_of_tree, running_registry
from tests.support.root_filesystems import PROGRAMS, make_root, require_overlays

TASKS = Path(__file__).resolve().parents[2] / "examples" / "harbor"
_MORE = ("bash", "awk", "cmp", "cp", "grep", "gzip", "mkfifo", "nohup", "seq", "sort", "tail", "timeout", "tr")
_BASE = "debian:bookworm-slim"


@contextmanager
def tasks_registry(directory: Path) -> Iterator[Registry]:
    """Runs a registry with the image that the tasks begin with: a few of this machine's own programs."""
    with running_registry(directory) as running:
        base = Layout(directory / "layout")
        root = make_root(directory / "base", (*PROGRAMS, *_MORE))
        (root / "srv").mkdir()
        base.add(archive_of_tree(root))
        base.finish(base.image({"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}))
        running.push(base.directory, _BASE)
        yield running


@asynccontextmanager
async def harbor_address(directory: Path) -> AsyncIterator[str]:
    """Runs a stack that pulls from such a registry and builds; skips where a program is missing."""
    require_overlays()
    require_program("buildah")
    with tasks_registry(directory) as registry:
        settings = StackSettings(
            directory / "stack",
            managers=(Role.SANDBOX,),
            given={"registry": (registry.address,), "build_images": True},
        )
        async with local_stack(settings) as stack:
            yield stack.address


@asynccontextmanager
async def harbor_stack(directory: Path) -> AsyncIterator[Client]:
    """Runs such a stack and connects to it."""
    async with harbor_address(directory) as address, Client(address) as client:
        yield client


async def scores_of(
    client: Client, job_id: str, task_set: TaskSet, policies: PolicyFactory, only: Collection[str] = ()
) -> dict[str, float | str]:
    """Runs the tasks, or some of them, and returns the score of each, or why it has none."""
    tasks = await anyio.to_thread.run_sync(task_set.tasks)
    chosen = [task for task in tasks if not only or task.task_id in only]
    async with await client.open_job(job_id) as job:
        records = await run_batch(job, task_set, chosen, policies)
    return {each.task.task_id: each.score.value if each.score else str(each.failure) for each in records}
