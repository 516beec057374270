"""E2B's protocols without a sandbox: frames, messages as JSON, errors, and what a process prints."""

from __future__ import annotations

import base64
import gzip
import json
import math
from typing import Any

import anyio
import pytest
from callsheet.client import (
    CommandResult,
    Expired,
    Failed,
    FailureKind,
    NotFoundError,
    OutputChunk,
    OutputStream,
    QueueFullError,
    Reason,
    TimeoutKind,
)
from callsheet.client.errors import RefusalCode
from callsheet.integrations.e2b import connect, messages
from callsheet.integrations.e2b.envd import told, unpacked, user_of
from callsheet.integrations.e2b.errors import ConnectCode, E2bError, E2bWords, gone
from callsheet.integrations.e2b.settings import E2bSettings
from callsheet.integrations.e2b.streams import MOST_UNREAD_BYTES, PidLine, ProcessOutput, SliceOutput
from pydantic import ValidationError

pytestmark = pytest.mark.anyio


def chunk(content: bytes, offset: int, stream: OutputStream = OutputStream.STDOUT) -> OutputChunk:
    return OutputChunk(stream, content, offset, 0)


def test_frames_are_taken_apart_wherever_they_are_cut() -> None:
    sent = connect.frame({"a": 1}) + connect.frame({"b": "\u00e9"})
    assert sent[:5] == b"\0\0\0\0\x07"
    for cut in range(len(sent)):
        reader = connect.FrameReader(100)
        found = [*reader.feed(sent[:cut]), *reader.feed(sent[cut:])]
        reader.close()
        assert [json.loads(each) for each in found] == [{"a": 1}, {"b": "\u00e9"}]


def test_the_end_of_a_stream_is_marked_and_tells_its_error() -> None:
    assert connect.end_frame() == b"\x02\0\0\0\x02{}"
    flags, body = connect.end_frame(E2bError(ConnectCode.NOT_FOUND, "no"))[0], connect.end_frame(gone("sb1"))[5:]
    assert flags == 2
    assert json.loads(body) == {"error": {"code": "unavailable", "message": "sandbox sb1 was not found"}}


@pytest.mark.parametrize(
    ("sent", "rule"),
    [
        (b"", "0 messages"),
        (connect.frame({}) * 2, "2 messages"),
        (connect.frame({})[:-1], "within a message"),
        (b"\x01\0\0\0\x02{}", "compressed"),
        (b"\0\xff\xff\xff\xff{}", "at most"),
    ],
)
def test_a_stream_that_is_none_is_refused(sent: bytes, rule: str) -> None:
    with pytest.raises(E2bError, match=rule):
        connect.one_message(sent)


def test_timeouts_and_content_types() -> None:
    assert connect.timeout_s(None) is None
    assert connect.timeout_s("1500") == 1.5
    for bad in ("", "-1", "1.5", "12345678901", "\u0661"):
        with pytest.raises(E2bError, match="Connect-Timeout-Ms"):
            connect.timeout_s(bad)
    assert connect.is_stream("application/connect+json; charset=utf-8")
    assert not connect.is_stream("application/json")
    with pytest.raises(E2bError) as caught:
        connect.is_stream("application/proto")
    assert caught.value.status == 415


def test_messages_are_read_as_json_of_protobuf() -> None:
    given = '{"process": {"cmd": "/bin/bash", "args": null, "envs": {"A": "b"}}, "pty": null, "new": 1}'
    asked = messages.StartProcess.model_validate_json(given)
    assert (asked.process.args, asked.process.envs, asked.pty, asked.stdin) == ([], {"A": "b"}, None, True)
    assert not messages.StartProcess.model_validate_json('{"stdin": false}').stdin
    for signal, number in (('"SIGNAL_SIGKILL"', 9), ("9", 9), ('"SIGNAL_SIGTERM"', 15)):
        assert messages.SendSignal.model_validate_json(f'{{"signal": {signal}}}').number == number
    for encoded in ("//8=", "__8=", "__8"):
        given = json.dumps({"input": {"stdin": encoded}})
        assert messages.SendInput.model_validate_json(given).input.stdin == b"\xff\xff"


@pytest.mark.parametrize("body", ["7", "{", '{"input": {"stdin": "*"}}', '{"input": {"stdin": 7}}'])
def test_messages_that_are_none_are_refused_by_name(body: str) -> None:
    with pytest.raises(ValidationError) as caught:
        messages.SendInput.model_validate_json(body)
    assert told(caught.value).code is ConnectCode.INVALID_ARGUMENT


def test_events_are_json_of_protobuf() -> None:
    assert messages.start_event(7) == {"event": {"start": {"pid": 7}}}
    assert messages.data_event("stderr", b"\xff") == {"event": {"data": {"stderr": base64.b64encode(b"\xff").decode()}}}
    assert messages.end_event(0, "") == {"event": {"end": {"exitCode": 0, "exited": True, "status": "exit status 0"}}}
    assert messages.end_event(-1, "signal 9")["event"]["end"]["error"] == "signal 9"


def failed(kind: FailureKind, reason: Reason) -> Failed[CommandResult]:
    return Failed(action_id="a-1", kind=kind, reason=reason, message="why")


@pytest.mark.parametrize(
    ("fault", "code", "ends"),
    [
        (E2bWords("sb").no_result(failed(FailureKind.INFRA, Reason.STATE_LOST)), ConnectCode.UNAVAILABLE, True),
        (E2bWords("sb").no_result(failed(FailureKind.INFRA, Reason.MANAGER_LOST)), ConnectCode.INTERNAL, False),
        (E2bWords("sb").no_result(failed(FailureKind.ENV, Reason.BAD_PATH)), ConnectCode.INVALID_ARGUMENT, False),
        (E2bWords("sb").no_result(failed(FailureKind.TIMEOUT, Reason.OTHER)), ConnectCode.DEADLINE_EXCEEDED, False),
        (
            E2bWords("sb").no_result(Expired(timeout=TimeoutKind.SCHEDULE_TO_START, action_id="a-1")),
            ConnectCode.DEADLINE_EXCEEDED,
            False,
        ),
        (E2bWords("sb").refused(QueueFullError(RefusalCode.RESOURCE_EXHAUSTED)), ConnectCode.RESOURCE_EXHAUSTED, False),
        (
            E2bWords("sb").refused(NotFoundError(RefusalCode.NOT_FOUND, field="trajectory_id")),
            ConnectCode.UNAVAILABLE,
            True,
        ),
        (E2bWords("sb").closed(), ConnectCode.UNAVAILABLE, True),
    ],
)
def test_what_has_no_result_gets_its_code(fault: E2bError, code: ConnectCode, ends: bool) -> None:
    assert (fault.code, fault.ends_sandbox) == (code, ends)
    assert fault.rest_body() == {"code": fault.status, "message": str(fault)}


def test_output_is_passed_on_once_whether_it_came_live_or_not() -> None:
    output = SliceOutput()
    assert output.live(chunk(b"abc", 0)) == b"abc"
    assert output.live(chunk(b"cde", 2)) == b"de"
    # Two bytes are missing: what follows them comes with the result.
    assert output.live(chunk(b"hi", 7)) == b""
    assert output.live(chunk(b"jk", 9)) == b""
    assert output.rest(b"abcdefghijk") == b"fghijk"
    assert output.rest(b"abcdefghijk") == b""


def test_the_first_line_is_the_process_id() -> None:
    for cut in range(7):
        line = PidLine()
        sent = b"421\n7\nx"
        assert line.strip(sent[:cut]) + line.strip(sent[cut:]) == b"7\nx"
        assert line.pid == 421


async def test_readers_get_what_comes_after_they_began() -> None:
    output = ProcessOutput()
    first = output.read()
    output.begin_slice()
    output.live(chunk(b"12\nab", 0))
    second = output.read()
    result = CommandResult(0, b"12\nabc", b"e")
    output.rest(result)
    output.begin_slice()
    output.rest(CommandResult(0, b"d"))
    output.end()
    assert await texts(first) == ["ab", "c", "e", "d"]
    assert await texts(second) == ["c", "e", "d"]
    assert (output.stdout_bytes, output.stderr_bytes) == (4, 1)


async def texts(reader: Any) -> list[str]:
    events = [event async for event in reader.events(60.0, math.inf)]
    return [base64.b64decode(value).decode() for each in events for value in each["event"]["data"].values()]


async def test_a_reader_that_does_not_read_is_told_so() -> None:
    output = ProcessOutput()
    reader = output.read()
    output.begin_slice()
    output.rest(CommandResult(0, b"1\n" + bytes(MOST_UNREAD_BYTES + 1)))
    with pytest.raises(E2bError, match="left unread"):
        await texts(reader)


async def test_a_reader_gets_signs_of_life_and_ends_at_its_deadline() -> None:
    reader = ProcessOutput().read()
    events = reader.events(0.0, math.inf)
    assert await anext(events) == messages.KEEP_ALIVE
    await events.aclose()
    with pytest.raises(E2bError, match="timeout"):
        await anext(reader.events(60.0, anyio.current_time()))


def test_users_and_packed_bodies() -> None:
    assert user_of("") == ""
    assert user_of("Basic " + base64.b64encode(b"root:").decode()) == "root"
    with pytest.raises(E2bError, match="basic"):
        user_of("Basic *")
    assert unpacked(gzip.compress(b"x" * 10), 10) == b"x" * 10
    for content, limit in ((gzip.compress(b"x" * 11), 10), (b"no", 10)):
        with pytest.raises(E2bError, match="body"):
            unpacked(content, limit)


def test_settings_name_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="timeout_s: 0"):
        E2bSettings(timeout_s=0)
    with pytest.raises(ValueError, match="auth_token: empty"):
        E2bSettings(auth_token="")
    with pytest.raises(ValueError, match="listen"):
        E2bSettings(listen="0.0.0.0:1")
