"""Reads workload files: TOML tables into parameters."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from importlib import resources

from callsheet.benchmarks.simulator.validation import InputError, validated
from callsheet.benchmarks.simulator.workloads.parameters import Workload


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
    text = (resources.files(__package__) / f"{name}.toml").read_text(encoding="utf-8")
    workload = validated(Workload, {"name": name, **tomllib.loads(text)}, name)
    jobs, cluster = list(workload.jobs), workload.cluster
    for part in workload.include:
        other = load(part.workload)
        share = part.share / sum(job.share for job in other.jobs)
        jobs += [
            replace(job, share=job.share * share, weight=part.weight, priority=part.priority) for job in other.jobs
        ]
        models, quotas = (*cluster.models, *other.cluster.models), (*cluster.quotas, *other.cluster.quotas)
        cluster = replace(cluster, models=models, quotas=quotas)
    return replace(workload, jobs=tuple(jobs), cluster=cluster)
