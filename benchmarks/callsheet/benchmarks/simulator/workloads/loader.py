"""Reads workload files: TOML tables into checked parameters."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import resources
from typing import TypeVar

from callsheet.benchmarks.simulator.input_table import InputError, InputTable
from callsheet.benchmarks.simulator.scenario import EngineType, Model, Quota
from callsheet.benchmarks.simulator.workloads.parameters import (
    NO_REWARD,
    ActionParameters,
    ClusterParameters,
    GenerationParameters,
    JobParameters,
    ProfileParameters,
    Workload,
)
from callsheet.scheduler.core.model import ActionKind, PriorityClass

T = TypeVar("T")

_EXTERNAL = {kind.name.lower(): kind for kind in ActionKind if kind is not ActionKind.GENERATE}
_PRIORITIES = {priority.name.lower(): priority for priority in PriorityClass}
_IMAGES = ("none", "job", "task")
_CHUNKS = (1, 2, 4, 8)
_ENGINE_GPUS = (1, 2, 4, 8, 16)


def names() -> tuple[str, ...]:
    """The workloads that come with Callsheet."""
    files = resources.files(__package__).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def load(name: str) -> Workload:
    """One of the workloads that come with Callsheet.

    Raises:
        InputError: There is none of that name.
    """
    if name not in names():
        raise InputError("workload", name, f"must be one of {', '.join(names())}")
    return parse((resources.files(__package__) / f"{name}.toml").read_text(encoding="utf-8"), name)


def parse(text: str, name: str) -> Workload:
    """A workload from the text of its file.

    Raises:
        InputError: The text is not right; the message names field, value and rule.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(name, "...", f"must be TOML: {error}") from error
    with InputTable(values, name) as table:
        included = [_include(part) for part in table.tables("include")]
        cluster = _read_cluster(table.table("cluster"), [workload.cluster for workload in included])
        jobs = [_read_job(part, cluster) for part in table.tables("job")]
        jobs += [job for workload in included for job in workload.jobs]
        _refuse_repeated(table.where("job"), [job.name for job in jobs])
        return table.read(Workload, name=name, cluster=cluster, jobs=tuple(jobs))


def _include(table: InputTable) -> Workload:
    """Another workload as a part of this one: its jobs divide `share` and take the given weight and priority."""
    with table:
        workload = load(table.text("workload"))
        share = table.number("share", low=1e-6) / sum(job.share for job in workload.jobs)
        weight = table.number("weight", 1.0, low=1e-6)
        priority = _PRIORITIES[table.text("priority", "train", _PRIORITIES)]
    jobs = tuple(replace(job, share=job.share * share, weight=weight, priority=priority) for job in workload.jobs)
    return replace(workload, jobs=jobs)


def _read_cluster(table: InputTable, included: list[ClusterParameters]) -> ClusterParameters:
    with table:
        models = [_read_with_gpus(part, Model, _CHUNKS) for part in table.tables("model")]
        quotas = [part.whole(Quota) for part in table.tables("quota")]
        engines = [_read_with_gpus(part, EngineType, _ENGINE_GPUS) for part in table.tables("engine")]
        models += [model for cluster in included for model in cluster.models]
        quotas += [quota for cluster in included for quota in cluster.quotas]
        _refuse_repeated(table.where("model"), [model.name for model in models])
        _refuse_repeated(table.where("quota"), [quota.name for quota in quotas])
        gpus = table.integer("gpus", 0)
        largest = max((model.gpus for model in models), default=0)
        per_node = table.integer("gpus_per_node", 8, low=max(1, largest))
        if 0 < gpus < largest or (models and not gpus):
            raise InputError(table.where("gpus"), gpus, f"must be at least {largest}, what the largest model takes")
        return table.read(
            ClusterParameters,
            gpus=gpus,
            gpus_per_node=per_node,
            models=tuple(models),
            quotas=tuple(quotas),
            engines=tuple(engines),
        )


def _read_with_gpus(table: InputTable, kind: Callable[..., T], sizes: Sequence[int]) -> T:
    """A model, or engines, on GPUs of one node."""
    with table:
        gpus = table.integer("gpus", 1)
        if gpus not in sizes:
            *less, most = map(str, sizes)
            raise InputError(table.where("gpus"), gpus, f"must be {', '.join(less)} or {most}")
        return table.read(kind, gpus=gpus)


def _read_job(table: InputTable, cluster: ClusterParameters) -> JobParameters:
    with table:
        group_size = table.integer("group_size", 1, low=1)
        image = table.text("image", "none", _IMAGES)
        mixes = _read_reward_mixes(table, cluster)
        profiles = tuple(_read_profile(part, cluster) for part in table.tables("profile"))
        if not profiles:
            raise InputError(table.where("profile"), [], "must hold at least one profile")
        reset = _read_reset(table, cluster)
        _check_sandbox(table, image, reset, profiles, mixes)
        return table.read(
            JobParameters,
            priority=_PRIORITIES[table.text("priority", "train", _PRIORITIES)],
            group_size=group_size,
            quorum=table.integer("quorum", 0, high=group_size),
            image=image,
            reset=reset,
            profiles=profiles,
            reward_mixes=mixes,
            reward_mix=table.text("reward_mix", NO_REWARD, mixes),
        )


def _read_reset(table: InputTable, cluster: ClusterParameters) -> ActionParameters | None:
    if not table.has("reset"):
        return None
    reset = _read_action(table.table("reset"), cluster, ActionKind.ENV_RESET)
    return replace(reset, in_sandbox=True)


def _read_reward_mixes(table: InputTable, cluster: ClusterParameters) -> dict[str, tuple[ActionParameters, ...]]:
    mixes: dict[str, tuple[ActionParameters, ...]] = {NO_REWARD: ()}
    if not table.has("rewards"):
        return mixes
    with table.table("rewards") as rewards:
        for name in rewards.names():
            mixes[name] = tuple(_read_action(part, cluster, ActionKind.REWARD) for part in rewards.tables(name))
    return mixes


def _read_profile(table: InputTable, cluster: ClusterParameters) -> ProfileParameters:
    with table:
        return table.read(
            ProfileParameters,
            generation=table.table("generation").whole(GenerationParameters),
            actions=tuple(_read_action(part, cluster, None) for part in table.tables("action")),
        )


def _read_action(table: InputTable, cluster: ClusterParameters, kind: ActionKind | None) -> ActionParameters:
    """An action of that kind; of the kind it names itself where None."""
    with table:
        named = kind or _EXTERNAL[table.text("kind", None, _EXTERNAL)]
        services = _read_services(table)
        calls = {"use": 0.0} if services or table.text("quota", "") else {}
        in_sandbox = table.flag("in_sandbox", named is ActionKind.ENV_STEP)
        action = table.read(ActionParameters, kind=named, services=services, in_sandbox=in_sandbox, **calls)
        _check_references(table, action, cluster)
        return action


def _read_services(table: InputTable) -> dict[str, float]:
    if not table.has("services"):
        return {}
    with table.table("services") as services:
        return {name: services.number(name, low=1e-6) for name in services.names()}


def _check_references(table: InputTable, action: ActionParameters, cluster: ClusterParameters) -> None:
    models = {model.name for model in cluster.models}
    for service in action.services:
        if service not in models:
            raise InputError(table.where("services"), service, "must be a model of the cluster")
    if action.quota and action.quota not in {quota.name for quota in cluster.quotas}:
        raise InputError(table.where("quota"), action.quota, "must be a quota of the cluster")
    if action.quota and action.services:
        raise InputError(table.where("quota"), action.quota, "must not stand beside services")


def _check_sandbox(
    table: InputTable,
    image: str,
    reset: ActionParameters | None,
    profiles: tuple[ProfileParameters, ...],
    mixes: dict[str, tuple[ActionParameters, ...]],
) -> None:
    actions = [action for profile in profiles for action in profile.actions]
    actions += [action for mix in mixes.values() for action in mix]
    if reset is None and any(action.in_sandbox for action in actions):
        raise InputError(table.where("reset"), None, "is required, as actions run in a sandbox")
    if (image == "none") != (reset is None):
        raise InputError(table.where("image"), image, 'must be "none" without reset, and only then')


def _refuse_repeated(where: str, found: list[str]) -> None:
    for name in found:
        if found.count(name) > 1:
            raise InputError(where, name, "must not have the same name twice")
