"""What a gateway decides without I/O: keys, names, how to sample, and what a caller is told."""

from __future__ import annotations

import string
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from callsheet.client import (
    Cancelled,
    ClientOptions,
    Expired,
    Failed,
    FailureKind,
    Reason,
    RefusalCode,
    Sampling,
    TimeoutKind,
)
from callsheet.client.admin import CallerIdentity
from callsheet.client.errors import CallsheetError, ConnectionLostError, refused
from callsheet.credentials.sandboxes import sandbox_source
from callsheet.gateway.chat import AskedSampling
from callsheet.gateway.server.callers import Callers, bearer_of, named, public_part
from callsheet.gateway.server.faults import NoReplyError, of_error, of_outcome
from callsheet.gateway.server.job_lives import JobLives
from callsheet.gateway.server.keys import ForcedSampling, KeyRefusedError, TrajectoryKey, read_key, write_key
from callsheet.gateway.server.sampling import sampling_of

_SECRET = bytes(32)
_KEY = TrajectoryKey("job/\u00e9", "a life", "t" * 200, 100.0, ForcedSampling(temperature=0.5, max_tokens=7))


def test_a_key_says_what_was_written() -> None:
    for key in (_KEY, replace(_KEY, token_id="0123456789ab")):
        text = write_key(key, _SECRET)
        assert (text.isascii(), "/" in text, read_key(text, _SECRET, now=99.9)) == (True, False, key)


@pytest.mark.parametrize(
    ("token", "part"), [("callsheet_0123456789ab_5ec2e7", "0123456789ab"), ("a name", ""), ("", ""), ("_", "")]
)
def test_a_key_names_its_token_without_its_secret(token: str, part: str) -> None:
    assert public_part(token) == part


@pytest.fixture
def callers() -> Callers:
    nobody: Any = None
    return Callers("127.0.0.1:1", ClientOptions(), _SECRET, JobLives(nobody, nobody))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("peer", "let_in"),
    [
        (sandbox_source("j", "t"), True),
        (f"::ffff:{sandbox_source('j', 't')}", True),
        # A harness beside the trainer, on this machine or another one.
        ("127.0.0.1", True),
        ("10.0.0.7", True),
        ("", True),
        (sandbox_source("j", "another"), False),
        (sandbox_source("another", "t"), False),
        (f"::ffff:{sandbox_source('j', 'another')}", False),
        (sandbox_source("", ""), False),
    ],
)
async def test_a_key_is_no_good_in_the_sandbox_of_another_trajectory(callers: Callers, peer: str, let_in: bool) -> None:
    key = write_key(TrajectoryKey("j", "a life", "t", 1e12), _SECRET)
    for headers, session in (({"x-api-key": key}, ""), ({"authorization": "Bearer any"}, key)):
        if let_in:
            assert (await callers.identify(headers, session, peer)).trajectory_id == "t"
            continue
        with pytest.raises(NoReplyError, match="a trajectory that this sandbox is not of") as told:
            await callers.identify(headers, session, peer)
        assert told.value.status == 403


@pytest.mark.anyio
async def test_one_question_is_asked_of_a_token_whose_answer_is_old(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [write_key(TrajectoryKey("j", "a life", f"t-{place}", 1e12, token_id="id"), _SECRET) for place in range(9)]
    asked, answers = [], iter([CallerIdentity("gateway", ""), None])

    async def ask(token: str, token_id: str) -> CallerIdentity | None:
        asked.append((token, token_id))
        await anyio.lowlevel.checkpoint()
        return next(answers)

    monkeypatch.setattr(callers, "_ask_scheduler", ask)
    await callers.identify({"x-api-key": keys[0]})
    # Its answer is old at once; those who call while one asks take it.
    monkeypatch.setattr("callsheet.gateway.server.callers.anyio.current_time", lambda: 1e9)
    refused = []

    async def call(key: str) -> None:
        try:
            await callers.identify({"x-api-key": key})
        except NoReplyError as error:
            refused.append((error.status, str(error)))

    async with anyio.create_task_group() as tasks:
        for key in keys:
            tasks.start_soon(call, key)
    assert asked == [("", "id")] * 2
    assert [status for status, _ in refused] == [401]
    for key in keys:
        with pytest.raises(NoReplyError, match="has ended with the token"):
            await callers.identify({"x-api-key": key})


def is_same(text: str) -> bool:
    try:
        return read_key(text, _SECRET, now=0.0).trajectory_id == "t"
    except KeyRefusedError:
        return False


@pytest.mark.anyio
async def test_a_key_that_was_shown_in_its_sandbox_is_bound_to_it(callers: Callers) -> None:
    own, another = (write_key(TrajectoryKey("j", "a life", "t", ends), _SECRET) for ends in (1e12, 2e12))
    inside = sandbox_source("j", "t")
    # What was refused binds nothing.
    with pytest.raises(NoReplyError, match="not of"):
        await callers.identify({"x-api-key": own}, "", sandbox_source("j", "u"))
    for peer in ("127.0.0.1", inside, inside, f"::ffff:{inside}"):
        assert (await callers.identify({"x-api-key": own}, "", peer)).trajectory_id == "t"
    # Unused bits at the end of base64, and its padding.
    letters = string.ascii_letters + string.digits + "-_"
    forms = [*(own[:-1] + letter for letter in letters), own + "="]
    same = [form for form in forms if is_same(form)]
    assert len(same) > 1
    for peer in ("127.0.0.1", "10.0.0.7", "::1", ""):
        for headers, session in (*(({"x-api-key": form}, "") for form in same), ({}, own)):
            with pytest.raises(NoReplyError, match="is bound to a sandbox") as told:
                await callers.identify(headers, session, peer)
            assert told.value.status == 403
        assert (await callers.identify({"x-api-key": another}, "", peer)).trajectory_id == "t"


@pytest.mark.parametrize("change", [lambda text: text[:-3] + "AAA", lambda text: "cs-AAAA" + text[7:], lambda _: "cs-"])
def test_a_changed_key_is_none(change: Any) -> None:
    with pytest.raises(KeyRefusedError, match="no key of this gateway"):
        read_key(change(write_key(_KEY, _SECRET)), _SECRET, now=0.0)


def test_a_key_ends_and_is_for_the_gateways_of_one_database() -> None:
    for secret, now, told in ((_SECRET, 100.0, "expired"), (bytes(31) + b"x", 0.0, "no key")):
        with pytest.raises(KeyRefusedError, match=told):
            read_key(write_key(_KEY, _SECRET), secret, now=now)


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"top_p": 0}, {"top_k": 1.5}, {"max_tokens": True}])
def test_what_cannot_be_forced_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"sampling.{next(iter(wrong))}"):
        ForcedSampling(**wrong)


@pytest.mark.parametrize(
    ("headers", "session", "shown", "subject", "found"),
    [
        ({"x-callsheet-job": "a%2Fb", "x-callsheet-trajectory": "%C3%A9"}, "t2", "c/t3", "", ("a/b", "\u00e9")),
        ({}, "j/t", "c/t3", "", ("j", "t")),
        ({}, "t", "", "j", ("j", "t")),
        ({}, "", "j/t/u", "", ("j", "t/u")),
        ({}, "", "j", "", ("j", "")),
        ({"x-callsheet-trajectory": "t"}, "", "", "j", ("j", "t")),
    ],
)
def test_a_request_names_its_trajectory(
    headers: dict[str, str], session: str, shown: str, subject: str, found: tuple[str, str]
) -> None:
    assert named(headers, session, shown, subject) == found


def test_a_key_comes_as_either_provider_has_it() -> None:
    headers = [{"authorization": "Bearer k"}, {"authorization": "Basic k", "x-api-key": "x"}, {}]
    assert [bearer_of(each) for each in headers] == ["k", "x", ""]


def sampled(asked: AskedSampling, forced: ForcedSampling, context: int | None = None) -> Sampling:
    return sampling_of(
        asked, forced, stop_token_ids={9, 3}, prompt_tokens=10, context_length=context, default_max_tokens=50
    )


def test_what_is_forced_goes_before_what_is_asked() -> None:
    asked = AskedSampling(max_tokens=20, temperature=0.2, top_p=0.9, top_k=4, seed=1, stop=("x",))
    assert sampled(asked, ForcedSampling()) == Sampling(20, 0.2, 0.9, 4, 1, ("x",), (3, 9))
    forced = ForcedSampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=30)
    assert sampled(asked, forced) == Sampling(20, 1.0, 1.0, 0, 1, ("x",), (3, 9))
    assert sampled(replace(asked, max_tokens=40), forced).max_new_tokens == 30
    assert sampled(AskedSampling(), ForcedSampling()).max_new_tokens == 50
    assert sampled(AskedSampling(temperature=0.0), ForcedSampling(), context=15).max_new_tokens == 5
    with pytest.raises(NoReplyError, match="maximum context length is 10"):
        sampled(asked, forced, context=10)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (refused(RefusalCode.NOT_FOUND, field="trajectory_id", value="t"), 409),
        (refused(RefusalCode.NOT_FOUND, field="job_id", value="j"), 409),
        (refused(RefusalCode.FAILED_PRECONDITION, field="service"), 503),
        (refused(RefusalCode.INVALID_ARGUMENT, field="generate"), 400),
        (refused(RefusalCode.RESOURCE_EXHAUSTED, retry_after_s=3.0), 429),
        (refused(RefusalCode.UNAVAILABLE), 503),
        (refused(RefusalCode.PERMISSION_DENIED), 403),
        (refused(RefusalCode.ALREADY_EXISTS), 409),
        (ConnectionLostError(), 503),
    ],
)
def test_a_refusal_says_whether_to_try_again(error: CallsheetError, status: int) -> None:
    fault = of_error(error)
    assert (fault.status, fault.retry_after_s is not None) == (status, status in {429, 503})


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Failed(kind=FailureKind.INFRA), 503),
        (Failed(kind=FailureKind.TIMEOUT), 504),
        (Failed(kind=FailureKind.QUOTA, retry_after_s=9.0), 429),
        (Failed(kind=FailureKind.ENV, reason=Reason.PROMPT_TOO_LONG), 400),
        (Failed(kind=FailureKind.ENV, reason=Reason.UNSERVABLE), 503),
        (Failed(kind=FailureKind.ENV), 500),
        (Cancelled(reason="closed"), 409),
        (Expired(timeout=TimeoutKind.SCHEDULE_TO_START), 503),
    ],
)
def test_an_outcome_says_whether_to_try_again(outcome: Any, status: int) -> None:
    assert of_outcome(outcome).status == status


def test_a_prompt_that_is_too_long_has_its_code_and_field_whoever_finds_out() -> None:
    with pytest.raises(NoReplyError) as raised:
        sampled(AskedSampling(), ForcedSampling(), context=10)
    for fault in (raised.value, of_outcome(Failed(kind=FailureKind.ENV, reason=Reason.PROMPT_TOO_LONG))):
        assert (fault.status, fault.code, fault.field) == (400, "context_length_exceeded", "messages")
