"""Nothing that others wrote gives orders to the terminal of who runs a command, whatever the command and the field."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from callsheet.cli import output, submit_commands
from callsheet.cli.plain import plain_outcome
from callsheet.client.codec.decode import decode_outcome
from callsheet.client.codec.fields import BlobReader
from callsheet.deploy import logs, tokens
from callsheet.deploy.terminal import visible, visible_line
from callsheet.options.common import LogFormat
from callsheet.v1 import admin_service_pb2, client_service_pb2, common_pb2, outcome_pb2
from callsheet.v1.google_rpc import status_pb2
from google.protobuf import any_pb2, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.support.command_line import invoke

ORDERS = (
    "\x1b]0;owned\x07",  # sets the title
    "\x1b]52;c;ZXZpbA==\x1b\\",  # sets the clipboard
    "\x1b[2J\x1b[1;1H",  # clears the screen
    "\x9b31m",  # the same in one byte
    "\x85",
    "\r\x08\x08\x0b\x0c\x00\x7f",
    "\u202egnp.exe\u2066\u2069\u2028",
    "[link=http://evil.example]here[/link] [/red] [bold]",  # markup of rich
)
HOSTILE = "".join(ORDERS) + "\n\tend"

_TEXTS = {FieldDescriptor.TYPE_STRING: HOSTILE, FieldDescriptor.TYPE_BYTES: HOSTILE.encode()}


def fill(message: Any, *chosen: str) -> Any:
    """Fills every field of a message: texts are hostile, numbers 1; of a oneof the chosen field, else the last."""
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if oneof is not None and field.name not in chosen and any(each.name in chosen for each in oneof.fields):
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(value, field.message_type)
        elif isinstance(value, Message):
            value.SetInParent()
            fill(value, *chosen)
        elif field.message_type is not None:
            fill(value.add(), *chosen)
        elif hasattr(value, "append"):
            value.append(_TEXTS.get(field.type, 1))
        else:
            setattr(message, field.name, _TEXTS.get(field.type, 1))
    return message


def _fill_map(values: Any, entry: Any) -> None:
    key, value = entry.fields
    name = _TEXTS.get(key.type, 1)
    if value.message_type is not None:
        fill(values[name])
    else:
        values[name] = _TEXTS.get(value.type, 1)


@contextmanager
def hostile_scheduler(refuses: grpc.StatusCode | None = None) -> Iterator[str]:
    """Yields its address.

    Args:
        refuses: Answer with this code and hostile details.
    """
    server = grpc.server(ThreadPoolExecutor(4))
    for module in (client_service_pb2, admin_service_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            handlers = {
                method.name: _handler(method, refuses) for method in service.methods if not method.client_streaming
            }
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def _handler(method: Any, refuses: grpc.StatusCode | None) -> grpc.RpcMethodHandler[Any, Any]:
    asked, answered = map(message_factory.GetMessageClass, (method.input_type, method.output_type))

    def answer(_: Any, context: grpc.ServicerContext) -> Any:
        if refuses is None:
            return fill(answered())
        packed = any_pb2.Any()
        packed.Pack(fill(common_pb2.ErrorDetail()))
        status = status_pb2.Status(code=refuses.value[0], message=HOSTILE, details=[packed])
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        return context.abort(refuses, HOSTILE)

    return grpc.unary_unary_rpc_method_handler(answer, asked.FromString, answered.SerializeToString)


_CLI = Path(output.__file__).parent
# Written out anew: everything but layout and what prints, and the marks that turn directions.
_ORDER = re.compile("[^\t\n\x20-\x7e\u00a0-\U0010ffff]|[\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_COMMANDS = (
    ("status",),
    ("jobs",),
    ("top",),
    ("explain", "a", "--job", "j"),
    ("what-if", "--pool", "p", "--nodes", "1"),
    ("cancel", "j"),
    ("close", "j"),
    ("drain", "m"),
)


def said(*arguments: str, **environment: str) -> str:
    done = invoke(*arguments, **{"COLUMNS": "400", **environment})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def check(text: str) -> None:
    found = _ORDER.search(text)
    assert found is None, (found, text)


@pytest.fixture(scope="module")
def hostile() -> Iterator[str]:
    with hostile_scheduler() as address:
        yield address


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    with hostile_scheduler(grpc.StatusCode.FAILED_PRECONDITION) as address:
        yield address


@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["people", "json"])
@pytest.mark.parametrize("command", _COMMANDS, ids=lambda words: words[0])
def test_answers_of_a_scheduler_are_text(hostile: str, command: tuple[str, ...], as_json: tuple[str, ...]) -> None:
    text = said(*command, "--scheduler", hostile, *as_json)
    check(text)
    if command[0] in {"status", "jobs", "explain"}:
        assert "\\u001b" in text
        assert "[link=" in text
    if as_json:
        json.loads(text)


@pytest.mark.parametrize("traceback", ["", "1"])
@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["people", "json"])
@pytest.mark.parametrize("command", _COMMANDS, ids=lambda words: words[0])
def test_refusals_are_text(refusing: str, command: tuple[str, ...], as_json: tuple[str, ...], traceback: str) -> None:
    text = said(*command, "--scheduler", refusing, *as_json, CALLSHEET_TRACEBACK=traceback)
    check(text)
    assert "\\u001b" in text


def outcomes() -> Iterator[Any]:
    for outcome in ("succeeded", "failed", "cancelled", "expired"):
        for result in ("generate", "env_reset", "env_step", "tool_call", "reward"):
            filled = fill(outcome_pb2.Outcome(), outcome, result, "inline")
            yield pytest.param(filled, id=f"{outcome}-{result}")


@pytest.mark.parametrize("message", list(outcomes()))
def test_outcomes_of_actions_are_text(message: outcome_pb2.Outcome, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = decode_outcome(message, BlobReader({}))
    submit_commands._print_outcome(outcome, HOSTILE)
    output.print_json(plain_outcome(outcome))
    text = capfd.readouterr().out
    check(text)
    assert "\\u001b" in text


def test_logs_are_text(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    structured = json.dumps({"event": HOSTILE, "timestamp": HOSTILE, "level": HOSTILE, "reason": HOSTILE})
    raw = json.dumps({"event": HOSTILE}, ensure_ascii=False)
    (tmp_path / "logs" / "scheduler.log").write_bytes(f"{structured}\n{raw}\n{HOSTILE}\n".encode() + b"\xff\x9b0m\n")
    for as_json in ((), ("--json",)):
        text = said("logs", "--data-dir", str(tmp_path), *as_json)
        check(text)
        # A newline in a value makes no line of its own.
        assert len(text.splitlines()) == 5
    assert json.loads(said("logs", "--data-dir", str(tmp_path), "--json").splitlines()[0])["reason"] == HOSTILE


def test_tokens_are_listed_as_text(tmp_path: Path) -> None:
    kept = tmp_path / "tokens.json"
    tokens.issue(kept, "job", HOSTILE)
    check(said("token", "list", "--tokens", str(kept)))
    check(said("token", "list", "--tokens", str(kept), "--json"))


def test_progress_is_text(capfd: pytest.CaptureFixture[str]) -> None:
    with output.progress_on_stderr() as show:
        show(HOSTILE)
    check(capfd.readouterr().err)


class Odd:
    """Something that a log line is given as it is."""

    def __repr__(self) -> str:
        return f"Odd({HOSTILE!r})"


def test_lines_of_a_console_log_are_text_and_show_no_variables() -> None:
    secret = "callsheet_" + "0123456789ab_secret"
    try:
        raise ValueError(HOSTILE + str(len(secret)))
    except ValueError:
        raised = sys.exc_info()
    values = {"reason": HOSTILE, "ids": [HOSTILE], "more": {HOSTILE: HOSTILE}, "error": ValueError(HOSTILE), "o": Odd()}
    event: Any = {"event": HOSTILE, "level": "info", "timestamp": "now", **values, "exc_info": raised}
    for processor in logs._renderers(LogFormat.CONSOLE):
        event = processor(None, "info", event)
    check(event)
    assert "\\u001b" in event
    assert secret not in event
    assert "ValueError" in event


def test_what_is_an_order() -> None:
    for order in ORDERS[:-1]:
        check(visible(f"a{order}b"))
        assert visible(order) != order
    assert visible("tab\tline\r\nnext") == "tab\tline\nnext"
    assert visible("\u00e9 \u4f60 \U0001f600 \ud83d") == "\u00e9 \u4f60 \U0001f600 \\ud83d"
    assert visible_line("a\r\nb\tc") == "a\\u000ab\\u0009c"
    assert visible(visible(HOSTILE)) == visible(HOSTILE)


def test_commands_say_nothing_past_the_one_place() -> None:
    for path in _CLI.glob("*.py"):
        if path.name not in {"output.py", "main.py"}:
            assert not re.search(r"typer\.s?echo|\bprint\(|[^t]Console\(\)|std(out|err)\.write", path.read_text()), path
