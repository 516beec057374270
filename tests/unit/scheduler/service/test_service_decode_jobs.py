"""Jobs and trajectories as they come over the wire: broken rules are named, and what is left out has defaults."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.words.model import GroupRequest, OnInfra, PriorityClass
from callsheet.scheduler.service.codec.decode import decode_job, decode_trajectory
from callsheet.v1 import job_pb2
from google.protobuf import text_format

from tests.support.refusals import refusal

JOBS_REFUSED = [
    ('job_id: "j" grace {}', "job.grace", "above 0"),
    ('job_id: "j" grace { seconds: -1 }', "job.grace", "between 0"),
    ("", "job.job_id", "1 to 256"),
    ('job_id: "j" share: -1', "job.share", "between 0"),
    ('job_id: "j" share: nan', "job.share", "between 0"),
    ('job_id: "j" priority_class: 9', "job.priority_class", "not a value"),
    ('job_id: "j" max_actions: -1', "job.max_actions", "at least 0"),
    ('job_id: "j" staleness { max_versions: -1 }', "job.staleness.max_versions", "at least 0"),
]


@pytest.mark.parametrize(("text", "field", "rule"), JOBS_REFUSED)
def test_a_broken_job_is_refused(text: str, field: str, rule: str) -> None:
    refused = refusal(lambda: decode_job(text_format.Parse(text, job_pb2.JobSpec())))
    assert refused.field == field
    assert rule in refused.rule


def test_a_job_has_defaults() -> None:
    job = decode_job(job_pb2.JobSpec(job_id="j"))
    assert (job.weight, job.priority_class, job.max_actions, job.max_staleness) == (1.0, PriorityClass.TRAIN, 0, 0)


TRAJECTORIES_REFUSED = [
    ('job_id: "j" trajectory_id: "t" deadline {}', "trajectory.deadline", "above 0"),
    (
        'job_id: "j" trajectory_id: "t" group { group_id: "g" size: 2 on_infra: 9 }',
        "trajectory.group.on_infra",
        "not a",
    ),
    ('trajectory_id: "t"', "trajectory.job_id", "1 to 256"),
    ('job_id: "j"', "trajectory.trajectory_id", "1 to 256"),
    ('job_id: "j" trajectory_id: "t" idle_timeout { seconds: -1 }', "trajectory.idle_timeout", "between 0"),
    ('job_id: "j" trajectory_id: "t" group {}', "trajectory.group.size", "at least 1"),
    ('job_id: "j" trajectory_id: "t" group { size: 2 }', "trajectory.group.group_id", "1 to 256"),
    ('job_id: "j" trajectory_id: "t" group { group_id: "g" size: 2 quorum: 3 }', "trajectory.group.quorum", "between"),
    ('job_id: "j" trajectory_id: "t" group { group_id: "g" size: 2 quorum: -1 }', "trajectory.group.quorum", "between"),
]


@pytest.mark.parametrize(("text", "field", "rule"), TRAJECTORIES_REFUSED)
def test_a_broken_trajectory_is_refused(text: str, field: str, rule: str) -> None:
    refused = refusal(lambda: decode_trajectory(text_format.Parse(text, job_pb2.TrajectorySpec())))
    assert refused.field == field
    assert rule in refused.rule


def test_a_group_without_a_quorum_needs_all() -> None:
    text = 'job_id: "j" trajectory_id: "t" group { group_id: "g" size: 4 }'
    trajectory = decode_trajectory(text_format.Parse(text, job_pb2.TrajectorySpec()))
    assert trajectory.group == GroupRequest("g", 4, 4)
    assert trajectory.idle_timeout == 3600.0


def test_a_job_may_name_its_grace_and_a_trajectory_its_deadline() -> None:
    job = decode_job(text_format.Parse('job_id: "j" grace { seconds: 7 }', job_pb2.JobSpec()))
    assert (job.grace, job.detached) == (7.0, False)
    assert decode_job(job_pb2.JobSpec(job_id="j", detached=True)).detached
    text = 'job_id: "j" trajectory_id: "t" deadline { seconds: 9 }'
    assert decode_trajectory(text_format.Parse(text, job_pb2.TrajectorySpec())).deadline == 9.0


def test_a_group_says_what_becomes_of_lost_members() -> None:
    text = 'job_id: "j" trajectory_id: "t" group { group_id: "g" size: 2 on_infra: ON_INFRA_MASK infra_budget: 0 }'
    group = decode_trajectory(text_format.Parse(text, job_pb2.TrajectorySpec())).group
    assert group == GroupRequest("g", 2, 2, OnInfra.MASK, 0)
