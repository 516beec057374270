"""Pages of history, read from a journal on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from callsheet.scheduler.core.words.costs import Account, Cost
from callsheet.scheduler.core.words.records import (
    ActionDispatched,
    ActionFinished,
    ActionSubmitted,
    ActionSummary,
    ClosedJobGrew,
    CostGrown,
    JobClosed,
    JobOpened,
    TrajectoryClosed,
    TrajectoryOpened,
)
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.history import reader as reader_module
from callsheet.scheduler.history.reader import CONTENT_BYTES, READ_BYTES, HistoryReader
from callsheet.scheduler.store.closed_jobs import ClosedJobs
from callsheet.scheduler.store.engine import READ_ONLY
from callsheet.scheduler.store.journal import Journal
from callsheet.v1 import action_pb2, admin_service_pb2, common_pb2, job_pb2, outcome_pb2
from sqlalchemy import Connection, event

from tests.support.journals import JournalPlace

ListTrajectories = admin_service_pb2.ListTrajectoryHistoryRequest
ListActions = admin_service_pb2.ListActionHistoryRequest
ListClosedJobs = admin_service_pb2.ListClosedJobsRequest
NOW = 100.0
GENERATE, REWARD = action_pb2.ACTION_KIND_GENERATE, action_pb2.ACTION_KIND_REWARD


def given(action_id: str, *, prompt: int = 1) -> bytes:
    """The spec of a generate."""
    spec = action_pb2.ActionSpec(action_id=action_id, label="short", task="sum", service="policy")
    spec.generate.prompt_token_ids.extend([1] * prompt)
    return spec.SerializeToString()


def generated(tokens: int = 3) -> bytes:
    """The outcome of a generate."""
    outcome = outcome_pb2.Outcome(attempts=1, manager_id="m")
    outcome.timeline.ended.seconds = 20
    outcome.usage.cpu_s = 0.5
    outcome.succeeded.generate.token_ids.extend([7] * tokens)
    outcome.succeeded.generate.cached_tokens = 2
    outcome.succeeded.generate.policy_versions.add(version=4, begin=0, end=tokens)
    return outcome.SerializeToString()


def scored(score: float) -> bytes:
    """The outcome of a reward."""
    outcome = outcome_pb2.Outcome()
    outcome.succeeded.reward.score = score
    return outcome.SerializeToString()


def submitted(action_id: str, trajectory_id: str = "t", kind: int = GENERATE, **about: int) -> ActionSubmitted:
    return ActionSubmitted("job", action_id, trajectory_id, b"hash", given(action_id, **about), 12.5, kind=kind)


def finished(action_id: str, outcome: bytes, kind: int = GENERATE, *, keeps_spec: bool = True) -> ActionFinished:
    told = ("succeeded", "short", "", "", 1, "m", "n", 12.5, 20.0, 1.5, 6.0, "", "sum", "policy")
    story: list[tuple[float, str]] = []
    summary = ActionSummary("job", action_id, kind, *told, {}, {}, story)
    return ActionFinished("job", action_id, "succeeded", outcome, 20.0, summary, keeps_spec)


def trajectory_of(reader: HistoryReader, **key: str) -> str:
    """What is told of an action that has ended."""
    told = admin_service_pb2.ExplainResponse(key=common_pb2.ActionKey(**key))
    reader.complete_ended(told)
    return told.trajectory_id


def opened(trajectory_id: str, version: int = 0, group_id: str = "") -> TrajectoryOpened:
    return TrajectoryOpened("job", trajectory_id, b"", version, 10.0, group_id)


@pytest.fixture
def journal(place: JournalPlace) -> Iterator[Journal]:
    with place.begun() as journal:
        journal.commit([JobOpened("job", b"")])
        yield journal


@pytest.fixture
def searches(journal: Journal) -> list[str]:
    """How SQLite finds the rows of each question; empty on PostgreSQL, which counts rows before it chooses."""
    plans: list[str] = []

    def explain(connection: Connection, _: object, statement: str, parameters: Any, *__: object) -> None:
        if connection.dialect.name == "sqlite" and statement.startswith("SELECT"):
            cursor = connection.connection.cursor()
            cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(str(row[3]) for row in cursor.fetchall())
            cursor.close()

    event.listen(journal.reader, "before_cursor_execute", explain)
    return plans


@pytest.mark.parametrize(
    "request_of_few",
    [
        ListTrajectories(job_id="job", group_id="g1"),
        ListTrajectories(job_id="job", group_id="g1", policy_version=1),
        ListTrajectories(job_id="job", group_id="g1", page_token="9.3"),
        ListTrajectories(job_id="job", trajectory_ids=["t1"]),
        ListTrajectories(job_id="job", trajectory_ids=["t1", "t2", "t3"]),
        ListTrajectories(job_id="job", trajectory_ids=["t1", "t2"], page_token="9.3"),
        ListTrajectories(job_id="job", policy_version=1),
        ListTrajectories(job_id="job", policy_version=1, longest=2),
        ListTrajectories(job_id="job"),
    ],
)
def test_a_few_trajectories_are_found_without_a_look_at_the_others(
    request_of_few: ListTrajectories, journal: Journal, searches: list[str]
) -> None:
    HistoryReader(journal.reader).trajectories(request_of_few, NOW)
    of_trajectories = [each for each in searches if "SEARCH trajectories" in each]
    assert not any(each.startswith(("SCAN trajectories", "SCAN actions")) for each in searches)
    if request_of_few.group_id:
        wanted = "job_number=? AND group_id=?"
    elif request_of_few.trajectory_ids:
        wanted = "job_number=? AND trajectory_id=?"
    else:
        wanted = "job_number=?"
    if request_of_few.longest and searches:
        assert "rowid=?" in of_trajectories.pop()
    assert all(wanted in each for each in of_trajectories)
    assert bool(of_trajectories) == bool(searches)


@pytest.mark.parametrize(
    "request_",
    [
        ListActions(job_id="job"),
        ListActions(job_id="job", page_token="5.t", contents=True),
        ListActions(job_id="job", trajectory_ids=["t", "u"]),
        ListActions(job_id="job", trajectory_ids=["t", "u"], page_token="5.t"),
    ],
)
def test_a_page_of_actions_is_read_in_order(request_: ListActions, journal: Journal, searches: list[str]) -> None:
    journal.commit([opened("t"), submitted("a"), submitted("b", "u")])
    HistoryReader(journal.reader).actions(request_)
    assert not any("SCAN" in each or "TEMP B-TREE" in each for each in searches)


def test_trajectories_come_newest_first_page_by_page(journal: Journal) -> None:
    journal.commit([opened(f"t{number}", version=number // 3, group_id=f"g{number % 2}") for number in range(10)])
    reader = HistoryReader(journal.reader)
    request, names = ListTrajectories(job_id="job", page_size=4), []
    for size in (4, 4, 2):
        page = reader.trajectories(request, NOW)
        assert len(page.trajectories) == size
        names += [each.trajectory_id for each in page.trajectories]
        request.page_token = page.next_page_token
    assert names == ["t9", "t8", "t7", "t6", "t5", "t4", "t3", "t2", "t1", "t0"]
    assert not request.page_token
    of_step = reader.trajectories(ListTrajectories(job_id="job", policy_version=1), NOW)
    assert [each.trajectory_id for each in of_step.trajectories] == ["t5", "t4", "t3"]
    of_group = reader.trajectories(ListTrajectories(job_id="job", group_id="g1", page_size=3), NOW)
    assert [each.trajectory_id for each in of_group.trajectories] == ["t9", "t7", "t5"]
    rest = ListTrajectories(job_id="job", group_id="g1", page_token=of_group.next_page_token)
    assert [each.trajectory_id for each in reader.trajectories(rest, NOW).trajectories] == ["t3", "t1"]
    named = reader.trajectories(ListTrajectories(job_id="job", trajectory_ids=["t2", "unknown", "t8"]), NOW)
    assert [each.trajectory_id for each in named.trajectories] == ["t8", "t2"]


def test_a_trajectory_has_its_end_its_rewards_and_the_task_of_its_first_action(journal: Journal) -> None:
    journal.commit([opened("t", 3, "g"), submitted("a"), submitted("r", kind=REWARD), submitted("q", kind=REWARD)])
    journal.commit([finished("a", generated()), finished("r", scored(0.25), REWARD)])
    account = Account(Cost({"cpu": 2.0}, {"tokens_out": 3.0}))
    journal.commit([CostGrown("job", account, {"t": account})])
    journal.commit([finished("q", scored(1.0), REWARD), TrajectoryClosed("job", "t", "completed", "why", 30.0, 0.75)])
    (told,) = HistoryReader(journal.reader).trajectories(ListTrajectories(job_id="job"), NOW).trajectories
    assert (told.group_id, told.policy_version, told.task, list(told.scores)) == ("g", 3, "sum", [0.25, 1.0])
    assert (told.end, told.reason, told.reward) == (job_pb2.TRAJECTORY_END_COMPLETED, "why", 0.75)
    assert (told.opened.seconds, told.closed.seconds) == (10, 30)
    assert (dict(told.cost.held), dict(told.cost.used)) == ({"cpu": 2.0}, {"tokens_out": 3.0})


def test_of_a_page_those_that_live_longest_are_told_and_all_are_summed_up(journal: Journal) -> None:
    lives = {"t0": 5.0, "t1": 50.0, "t2": 7.0, "t3": None, "t4": None}
    journal.commit([opened(name) for name in lives] + [submitted("r", "t4", REWARD), submitted("a", "t1")])
    journal.commit([finished("r", scored(0.75), REWARD)])
    ends = [(name, 10.0 + life) for name, life in lives.items() if life is not None]
    journal.commit([TrajectoryClosed("job", name, "completed", "", end, 0.25) for name, end in ends])
    reader = HistoryReader(journal.reader)
    page = reader.trajectories(ListTrajectories(job_id="job", policy_version=0, longest=3), NOW)
    assert {each.trajectory_id for each in page.trajectories[:2]} == {"t3", "t4"}
    assert (page.trajectories[2].trajectory_id, page.trajectories[2].task) == ("t1", "sum")
    summary = page.summary
    assert (summary.trajectories, summary.open, summary.mean_reward, summary.median_s) == (5, 2, 0.375, 50.0)
    part = reader.trajectories(ListTrajectories(job_id="job", page_size=3, longest=1), NOW)
    assert part.summary.trajectories == 3
    rest = ListTrajectories(job_id="job", page_size=3, longest=1, page_token=part.next_page_token)
    (last,) = reader.trajectories(rest, NOW).trajectories
    assert (last.trajectory_id, last.reward) == ("t1", 0.25)
    none = reader.trajectories(ListTrajectories(job_id="job", policy_version=9, longest=1), NOW)
    assert not none.summary.HasField("mean_reward")


def test_an_open_trajectory_has_no_end_and_no_reward(journal: Journal) -> None:
    journal.commit([opened("t"), submitted("a")])
    (told,) = HistoryReader(journal.reader).trajectories(ListTrajectories(job_id="job"), NOW).trajectories
    assert not told.HasField("closed")
    assert not told.HasField("reward")
    assert (told.end, told.task) == (job_pb2.TRAJECTORY_END_UNSPECIFIED, "sum")


def test_actions_come_by_trajectory_and_submit_page_by_page(journal: Journal) -> None:
    journal.commit([opened(name) for name in "tu"])
    journal.commit([submitted(f"a{number}", "ut"[number % 2]) for number in range(7)] + [submitted("alone", "")])
    reader = HistoryReader(journal.reader)
    request, names = ListActions(job_id="job", page_size=3), []
    for size in (3, 3, 2):
        page = reader.actions(request)
        assert len(page.actions) == size
        names += [each.key.action_id for each in page.actions]
        request.page_token = page.next_page_token
    assert names == ["alone", "a1", "a3", "a5", "a0", "a2", "a4", "a6"]
    assert not request.page_token
    some = reader.actions(ListActions(job_id="job", trajectory_ids=["u", "t"], page_size=4))
    assert [each.key.action_id for each in some.actions] == ["a1", "a3", "a5", "a0"]
    rest = ListActions(job_id="job", trajectory_ids=["u", "t"], page_token=some.next_page_token)
    assert [each.key.action_id for each in reader.actions(rest).actions] == ["a2", "a4", "a6"]


def test_a_finished_action_has_all_but_its_contents_unless_they_are_asked_for(journal: Journal) -> None:
    journal.commit([opened("t"), submitted("a"), ActionDispatched("job", "a", 1, 1, 1, "m", "process")])
    journal.commit([finished("a", generated(3))])
    reader = HistoryReader(journal.reader)
    (told,) = reader.actions(ListActions(job_id="job")).actions
    assert (told.label, told.task, told.service, told.manager_id) == ("short", "sum", "policy", "m")
    assert told.state == admin_service_pb2.ACTION_STATE_SUCCEEDED
    assert (told.timeline.submitted.ToNanoseconds(), told.timeline.ended.seconds) == (12_500_000_000, 20)
    assert (told.usage.cpu_s, told.output_tokens, told.cached_tokens) == (0.5, 3, 2)
    assert [span.version for span in told.policy_versions] == [4]
    assert not told.HasField("spec")
    assert not told.HasField("outcome")
    (whole,) = reader.actions(ListActions(job_id="job", contents=True)).actions
    assert whole.spec.SerializeToString() == given("a")
    assert whole.outcome.SerializeToString() == generated(3)
    assert whole.outcome_bytes == len(generated(3))


def test_a_brief_action_tells_what_needs_no_look_at_its_outcome(journal: Journal) -> None:
    journal.commit([opened("t"), submitted("a"), ActionDispatched("job", "a", 1, 1, 1, "m", "process"), submitted("b")])
    journal.commit([finished("a", generated(READ_BYTES))])
    reader = HistoryReader(journal.reader)
    told, waits = reader.actions(ListActions(job_id="job", brief=True, contents=True)).actions
    assert (told.label, told.task, told.service, told.manager_id) == ("short", "sum", "policy", "m")
    assert (told.timeline.queue_s, told.timeline.execution_s, told.timeline.ended.seconds) == (1.5, 6.0, 20)
    assert not told.output_tokens
    assert not told.HasField("outcome")
    assert waits.state == admin_service_pb2.ACTION_STATE_QUEUED


def test_an_action_tells_its_trajectory_as_long_as_anything_is_kept_of_it(place: JournalPlace) -> None:
    with place.begun(kept_actions=1) as journal:
        journal.commit([JobOpened("job", b""), opened("t"), submitted("a"), submitted("alone", "")])
        reader = HistoryReader(journal.reader)
        found = [trajectory_of(reader, job_id="job", action_id=each) for each in ("a", "alone")]
        assert found == ["t", ""]
        journal.commit([JobClosed("job")])
        assert trajectory_of(reader, job_id="job", action_id="a") == "t"
        assert not trajectory_of(reader, job_id="never", action_id="a")


def test_of_a_finished_action_a_long_spec_is_not_kept(journal: Journal) -> None:
    journal.commit([opened("t"), submitted("a"), submitted("b")])
    journal.commit([finished("a", generated(), keeps_spec=False), finished("b", generated())])
    told = HistoryReader(journal.reader).actions(ListActions(job_id="job", contents=True)).actions
    assert [each.HasField("spec") for each in told] == [False, True]
    assert [each.label for each in told] == ["short", "short"]
    # Not for the core: there may be many.
    assert [each.spec for each in journal.load().actions] == [b"", b""]


def test_a_page_is_over_once_it_is_large(journal: Journal) -> None:
    large, names = generated(READ_BYTES // 2), ("a", "b", "c")
    journal.commit([opened("t"), *map(submitted, names)])
    journal.commit([finished(name, large) for name in names])
    reader = HistoryReader(journal.reader)
    page = reader.actions(ListActions(job_id="job"))
    assert [each.output_tokens for each in page.actions] == [READ_BYTES // 2]
    following = ListActions(job_id="job", page_token=page.next_page_token)
    assert reader.actions(following).actions[0].key.action_id == "b"
    # One that fits into no page goes without, and says how large it is.
    (whole,) = reader.actions(ListActions(job_id="job", contents=True, page_size=1)).actions
    assert not whole.HasField("outcome")
    assert whole.outcome_bytes == len(large) > CONTENT_BYTES


def test_a_page_of_open_actions_is_over_once_their_specs_are_large(journal: Journal) -> None:
    journal.commit([opened("t"), *(submitted(name, prompt=READ_BYTES // 2) for name in ("a", "b", "c"))])
    page = HistoryReader(journal.reader).actions(ListActions(job_id="job"))
    assert [(each.key.action_id, each.task) for each in page.actions] == [("a", "sum")]
    assert page.next_page_token


def test_a_page_of_trajectories_reads_a_bound_of_specs_and_of_rewards(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number}" for number in range(4)]
    monkeypatch.setattr(reader_module, "SCORES_BYTES", 5 * len(scored(0.5)) // 2)
    journal.commit([*map(opened, names), *(submitted(f"a-{name}", name, prompt=READ_BYTES // 3) for name in names)])
    journal.commit([submitted(f"r-{name}", name, REWARD) for name in names])
    journal.commit([finished(f"r-{name}", scored(0.5), REWARD) for name in names])
    told = HistoryReader(journal.reader).trajectories(ListTrajectories(job_id="job"), NOW).trajectories
    assert sorted(each.task for each in told) == ["", "", "sum", "sum"]
    assert [list(each.scores) for each in sorted(told, key=lambda each: each.trajectory_id)] == [[0.5], [0.5], [], []]


def test_the_newest_actions_of_closed_jobs_are_kept_with_their_trajectories(place: JournalPlace) -> None:
    with place.begun(kept_actions=5) as journal:
        journal.commit([JobOpened("job", b""), opened("old"), opened("new")])
        journal.commit([submitted(f"a{number}", "old" if number < 4 else "new") for number in range(8)])
        journal.commit([finished(f"a{number}", generated()) for number in range(8)] + [JobClosed("job")])
        while journal.has_garbage:
            journal.purge(3)
        reader = HistoryReader(journal.reader)
        kept = reader.actions(ListActions(job_id="job", trajectory_ids=["old", "new"]))
        assert [each.key.action_id for each in kept.actions] == ["a4", "a5", "a6", "a7", "a3"]
        assert kept.job_closed
        journal.commit([JobOpened("next", b""), ActionSubmitted("next", "b", "", b"", b"", 30.0)])
    with place.begun(kept_actions=5) as journal:
        # "b" of the next job takes the place of the only one that "old" has left.
        journal.commit([JobClosed("next")])
        while journal.has_garbage:
            journal.purge(3)
        reader = HistoryReader(journal.reader)
        page = reader.trajectories(ListTrajectories(job_id="job"), NOW)
        assert [each.trajectory_id for each in page.trajectories] == ["new"]
        assert [each.end for each in page.trajectories] == [job_pb2.TRAJECTORY_END_ABANDONED]
        assert [each.key.action_id for each in reader.actions(ListActions(job_id="next")).actions] == ["b"]
        # An open job of the name comes first.
        journal.commit([JobOpened("job", b"")])
        assert not reader.actions(ListActions(job_id="job")).actions
        # Ids that were given out are not given out again.
        journal.commit([submitted("a0", "")])
        assert [each.key.action_id for each in reader.actions(ListActions(job_id="job")).actions] == ["a0"]
    with place.begun() as journal:
        journal.commit([JobClosed("job")])
        while journal.has_garbage:
            journal.purge(3)
    assert [place.count(table) for table in ("actions", "trajectories", "closed_jobs")] == [0, 0, 0]


def closed_job(job_id: str, at: float, cost: Cost | None = None, reason: str = "on request") -> JobClosed:
    return JobClosed(job_id, reason, at - 5.0, at, cost or Cost())


def purge(journal: Journal) -> None:
    while journal.has_garbage:
        journal.purge(3)


def test_closed_jobs_come_newest_first_page_by_page(place: JournalPlace) -> None:
    cost = Cost({"cpu": 2.5}, {"tokens_out": 7.0})
    with place.begun(kept_actions=5) as journal:
        journal.commit([JobOpened(f"job{number}", b"", opened_at=number) for number in range(5)])
        journal.commit([closed_job("job3", 31.5, cost, "idle"), closed_job("job0", 40.0)])
        # One that is opened and closed in one commit was there, too, and one may have the id of another.
        journal.commit([JobOpened("job3", b""), closed_job("job3", 50.0), closed_job("job1", 40.0)])
        journal.commit([JobOpened("job1", b"")])
        purge(journal)
        # What was closed grows, though its id is in use again.
        journal.commit([ClosedJobGrew("job1", 40.0, cost), ClosedJobGrew("forgotten", 1.0, cost)])
    with place.begun(kept_actions=5) as journal:
        purge(journal)
        reader = HistoryReader(journal.reader)
        told: list[admin_service_pb2.ClosedJob] = []
        token, pages = "", 0
        while token or not pages:
            page = reader.closed_jobs(ListClosedJobs(page_size=1, page_token=token))
            told += page.jobs
            token, pages = page.next_page_token, pages + 1
        assert [(each.job_id, each.reopened) for each in told] == [
            ("job3", False),
            ("job1", True),
            ("job0", False),
            ("job3", True),
        ]
        last = told[3]
        assert (last.reason, last.opened.ToNanoseconds(), last.closed.ToNanoseconds()) == ("idle", 26.5e9, 31.5e9)
        for each in (told[1], last):
            assert (dict(each.cost.held), dict(each.cost.used)) == ({"cpu": 2.5}, {"tokens_out": 7.0})
        assert list(reader.closed_jobs(ListClosedJobs()).jobs) == told
        assert list(reader.closed_jobs(ListClosedJobs(job_id="job3")).jobs) == [told[0], last]
        assert not reader.closed_jobs(ListClosedJobs(job_id="job2")).jobs


def test_closed_jobs_are_read_by_their_index(journal: Journal, searches: list[str]) -> None:
    HistoryReader(journal.reader).closed_jobs(ListClosedJobs(page_token="3.2.5"))
    assert not [each for each in searches if each.startswith(("SCAN", "USE TEMP"))]


def test_the_newest_closed_jobs_are_kept_and_those_of_which_actions_are(
    place: JournalPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callsheet.scheduler.store.closed_jobs.KEPT_JOBS", 2)
    with place.begun(kept_actions=1) as journal:
        journal.commit([JobOpened(f"job{number}", b"") for number in range(5)])
        journal.commit([opened_in("job1"), ActionSubmitted("job1", "a", "", b"", b"", 30.0)])
        # The first of them has nothing at all, and is closed last.
        for at, number in enumerate((1, 2, 3, 4, 0)):
            journal.commit([closed_job(f"job{number}", 10.0 + at)])
            purge(journal)
        reader = HistoryReader(journal.reader)
        assert [each.job_id for each in reader.closed_jobs(ListClosedJobs()).jobs] == ["job0", "job4", "job1"]
        assert not reader.trajectories(ListTrajectories(job_id="job4"), NOW).trajectories
    with place.begun() as journal:
        purge(journal)
        assert not HistoryReader(journal.reader).closed_jobs(ListClosedJobs()).jobs


def opened_in(job_id: str) -> TrajectoryOpened:
    return TrajectoryOpened(job_id, "t", b"", 0, 10.0)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ListActions(job_id="job", page_size=1001), "page_size"),
        (ListActions(job_id="job", page_size=-1), "page_size"),
        (ListActions(job_id="job", page_token="x"), "page_token"),
        (ListActions(job_id="job", page_token=f"{2**63}.t"), "page_token"),
        (ListActions(job_id="job", page_token="1.\0"), "page_token"),
        (ListTrajectories(job_id="job", page_token="1.x"), "page_token"),
        (ListTrajectories(job_id="job", page_token=f"1.{2**63}"), "page_token"),
        (ListClosedJobs(page_token="1.nan"), "page_token"),
        (ListClosedJobs(page_size=1001), "page_size"),
        (ListClosedJobs(job_id="\0"), "job_id"),
        (ListTrajectories(job_id="job", group_id="\0"), "group_id"),
        (ListTrajectories(job_id="job", longest=1001), "longest"),
        (ListTrajectories(job_id="job", longest=-1), "longest"),
        (ListTrajectories(job_id="job", trajectory_ids=["\0"]), "trajectory_ids"),
        (ListTrajectories(job_id="job", trajectory_ids=["t"] * 257), "trajectory_ids"),
    ],
)
def test_what_makes_no_page_is_refused(journal: Journal, request_: Any, field: str) -> None:
    reader = HistoryReader(journal.reader)
    read: Any = {
        ListActions: reader.actions,
        ListTrajectories: partial(reader.trajectories, now=NOW),
        ListClosedJobs: reader.closed_jobs,
    }
    with pytest.raises(RefusedError) as caught:
        read[type(request_)](request_)
    assert (caught.value.code, caught.value.field) == (RefusalCode.INVALID_ARGUMENT, field)


@pytest.mark.parametrize("job_id", ["unknown", "closed"])
def test_a_job_of_which_nothing_is_kept_is_not_found(journal: Journal, job_id: str) -> None:
    journal.commit([JobOpened("closed", b"")])
    journal.commit([JobClosed("closed")])
    while journal.has_garbage:
        journal.purge(10)
    with pytest.raises(RefusedError) as caught:
        HistoryReader(journal.reader).actions(ListActions(job_id=job_id))
    assert (caught.value.code, caught.value.field) == (RefusalCode.NOT_FOUND, "job_id")


@pytest.mark.parametrize(("most_bytes", "kept"), [(10_000, ["a0", "a1", "a2"]), (2_500, ["a1", "a2"]), (10, [])])
def test_closed_jobs_keep_a_bound_of_bytes(place: JournalPlace, most_bytes: int, kept: list[str]) -> None:
    with place.begun(kept_actions=100) as journal:
        for number in range(3):
            job_id = f"job{number}"
            journal.commit([JobOpened(job_id, b""), ActionSubmitted(job_id, f"a{number}", "", b"", b"x" * 1_000, 1.0)])
            journal.commit([JobClosed(job_id)])
        closed = ClosedJobs(100, most_bytes)
        closed.add([1, 2, 3])
        with journal.reader.execution_options(**{READ_ONLY: False}).connect() as connection, connection.begin():
            while closed.has_garbage:
                closed.purge(connection, 1)
        with place.outside() as outside:
            found = outside.execute("SELECT action_id FROM actions ORDER BY id").fetchall()
    assert [name for (name,) in found] == kept
    # What the jobs cost is kept all the same.
    assert place.count("closed_jobs") == 3
