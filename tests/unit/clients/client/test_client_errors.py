"""The client's exceptions."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest
from callsheet.client import (
    AccessDeniedError,
    AlreadyExistsError,
    CallsheetError,
    ClientClosedError,
    ConnectionLostError,
    Expired,
    Failed,
    FailedPreconditionError,
    FailureKind,
    ForkedProcessError,
    InvalidArgumentError,
    NotFoundError,
    NotSucceededError,
    PayloadError,
    QueueFullError,
    RefusalCode,
    RefusedError,
    UnavailableError,
    UnimplementedError,
)
from callsheet.client import errors as errors_module
from callsheet.client.errors import invalid, refused


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (RefusalCode.INVALID_ARGUMENT, InvalidArgumentError),
        (RefusalCode.OUT_OF_RANGE, InvalidArgumentError),
        (RefusalCode.NOT_FOUND, NotFoundError),
        (RefusalCode.ALREADY_EXISTS, AlreadyExistsError),
        (RefusalCode.FAILED_PRECONDITION, FailedPreconditionError),
        (RefusalCode.RESOURCE_EXHAUSTED, QueueFullError),
        (RefusalCode.UNAVAILABLE, UnavailableError),
        (RefusalCode.UNIMPLEMENTED, UnimplementedError),
        (RefusalCode.PERMISSION_DENIED, AccessDeniedError),
        (RefusalCode.UNAUTHENTICATED, AccessDeniedError),
        (RefusalCode.INTERNAL, RefusedError),
    ],
)
def test_each_code_has_its_class(code: RefusalCode, error: type[RefusedError]) -> None:
    assert type(refused(code)) is error


def test_a_refusal_reads_as_one_line() -> None:
    error = refused(
        RefusalCode.INVALID_ARGUMENT, field="timeouts.heartbeat", value="-1s", rule="not negative", retry_after_s=2
    )
    assert str(error) == "INVALID_ARGUMENT: timeouts.heartbeat = '-1s': not negative (try again after 2 s)"
    assert str(refused(RefusalCode.INTERNAL, rule="broken")) == "INTERNAL: broken"


def test_refusals_can_be_caught_as_what_they_are_in_python() -> None:
    assert isinstance(invalid("f", 1, "r"), ValueError)
    assert isinstance(refused(RefusalCode.NOT_FOUND), LookupError)


def test_a_long_value_is_shortened() -> None:
    assert len(invalid("f", "x" * 1000, "r").value) == 200


def test_refusals_survive_pickling_and_copying() -> None:
    error = refused(RefusalCode.RESOURCE_EXHAUSTED, field="f", value="v", rule="r", retry_after_s=0.5)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is QueueFullError
        assert (again.code, again.field, again.value, again.rule, again.retry_after_s) == (
            "RESOURCE_EXHAUSTED", "f", "v", "r", 0.5,
        )  # fmt: skip


@pytest.mark.parametrize(
    "error",
    [
        ClientClosedError("closed"),
        ConnectionLostError("lost"),
        ForkedProcessError("forked"),
        PayloadError("gone"),
        NotSucceededError(Expired()),
    ],
)
def test_the_other_errors_survive_pickling(error: CallsheetError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.args == error.args


def test_the_drawn_tree_names_every_exception() -> None:
    drawn = errors_module.__doc__ or ""
    for name, value in vars(errors_module).items():
        if isinstance(value, type) and issubclass(value, CallsheetError):
            assert name in drawn


@pytest.mark.parametrize(
    "error",
    [
        PayloadError("\x1b]52;c;eA==\x07\x9b2J\r\u202eoh\ud800"),
        NotSucceededError(Failed(kind=FailureKind.ENV, message="\x1b[2J\x07")),
        refused(RefusalCode.NOT_FOUND, field="job_id", value="\x1b[2J", rule="\x1b[2J\x07 is none"),
        refused(RefusalCode.INTERNAL, rule="\x00\u2028"),
        ConnectionLostError(OSError("\x1bc")),
    ],
)
def test_what_others_wrote_is_text_in_an_exception(error: CallsheetError) -> None:
    said = "".join(traceback.format_exception(error))
    assert all(each.isprintable() or each == "\n" for each in said)
    assert "\\u001b" in said or "\\u2028" in said
    assert str(PayloadError("two\n\tlines, \u00e9\xa0\U0001f600")) == "two\n\tlines, \u00e9\xa0\U0001f600"
