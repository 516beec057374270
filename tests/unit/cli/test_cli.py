"""The command line, as far as it needs no running scheduler."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from callsheet.cli.app import app
from callsheet.cli.inspect_commands import holding
from callsheet.cli.output import (
    CallsheetGroup,
    CommandError,
    MissingExtraError,
    describe,
    first_error,
    needs,
    print_table,
)
from callsheet.cli.plain import plain_outcome
from callsheet.client import CommandResult, Failed, FailureKind, Reason, Succeeded
from callsheet.client.admin_values import Holder
from callsheet.client.errors import invalid
from callsheet.deploy.roles import Role
from callsheet.options.common import comma_separated
from typer.testing import CliRunner

from tests.support.command_line import invoke as run
from tests.support.ports import free_port

HEAVY = ("callsheet.client", "google.protobuf", "grpc", "numpy", "ortools", "ray", "sqlalchemy", "structlog", "torch")

COMMANDS: list[tuple[str, ...]] = [
    (),
    ("up",),
    ("scheduler",),
    ("manager",),
    ("manager", "inference"),
    ("manager", "noop"),
    ("manager", "reward"),
    ("manager", "sandbox"),
    ("facade", "e2b"),
    ("facade", "swerex"),
    ("submit",),
    ("submit", "env-step"),
    ("status",),
    ("explain",),
    ("jobs",),
    ("cancel",),
    ("close",),
    ("drain",),
    ("logs",),
    ("what-if",),
    ("bench", "dispatch"),
    ("demo",),
    ("eval",),
]


@pytest.mark.parametrize("arguments", COMMANDS)
def test_every_command_explains_itself(arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "--help")
    assert result.exit_code == 0, result.output
    assert "Usage: callsheet" in result.output


COPIED = re.compile(r"CALLSHEET_[A-Z_]+|--[a-z][a-z-]+")


@pytest.mark.parametrize("arguments", COMMANDS)
def test_help_fits_80_columns_and_cuts_no_name(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def helped(columns: str) -> str:
        monkeypatch.setenv("COLUMNS", columns)
        return run(*arguments, "--help").output

    narrow = helped("80")
    assert all(len(line) <= 80 for line in narrow.splitlines())
    assert "\N{HORIZONTAL ELLIPSIS}" not in narrow
    assert sorted(COPIED.findall(narrow)) == sorted(COPIED.findall(helped("200")))


@pytest.mark.parametrize("group", [(), ("manager",), ("submit",), ("bench",), ("facade",)])
def test_help_says_what_each_command_does_in_a_whole_sentence(group: tuple[str, ...]) -> None:
    _, _, commands = run(*group, "--help").output.partition("Commands:")
    assert [line for line in commands.splitlines() if line.endswith("...")] == []


def test_help_is_quick_as_it_loads_no_heavy_room() -> None:
    code = (
        "import sys\n"
        "from callsheet.cli.app import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "modules",
    [
        "callsheet.deploy.logs, callsheet.scheduler.service.server",
        "callsheet.deploy.logs, callsheet.gateway.server.server",
        "callsheet.deploy.manager_process, callsheet.managers.sandbox.build",
    ],
)
def test_processes_that_serve_start_without_what_structlog_adds_to_tracebacks(modules: str) -> None:
    code = (
        f"import sys, {modules}\n"
        "print([name for name in ('attr', 'pygments', 'rich') if name in sys.modules])\n"
        "import rich.console\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_version_is_printed() -> None:
    assert run("--version").output.startswith("callsheet ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("status", "--colour"),
        ("facade", "swerex"),
        ("facade", "swerex", "--auth-token", "x", "--no-auth"),
        ("facade", "swerex", "--auth-token", "x", "--listen", "nowhere"),
        ("facade", "e2b"),
        ("facade", "e2b", "--auth-token", "x", "--default-timeout", "0"),
        ("up", "--cpus", "0"),
        ("up", "--isolation", "hope"),
        ("up", "--managers", "x"),
        ("up", "--listen", "localhost"),
        ("up", "--listen", "127.0.0.1:65536"),
        ("scheduler", "--listen", ":7077"),
        ("scheduler", "--listen", "127.0.0.1:-1"),
        ("scheduler", "--expect", "gpu"),
        ("manager", "noop", "--cpus", "9999"),
        ("manager", "inference", "--engine", "steam"),
        ("manager", "inference", "--engine-option", "wheels=4"),
        ("submit", "reward-tests", "--", "true"),
        ("what-if", "--pool", "p"),
        ("what-if", "--pool", "p", "--nodes", "0"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_an_absent_scheduler_is_one_line_and_exit_code_1() -> None:
    result = run("status", "--scheduler", f"127.0.0.1:{free_port()}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("callsheet: UNAVAILABLE")
    assert result.stderr.endswith("; is `callsheet up` running?\n")
    assert len(result.stderr.splitlines()) == 1


def test_the_address_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("CALLSHEET_SCHEDULER", address)
    assert address in run("explain", "a-1").stderr


def test_managers_are_read_in_order() -> None:
    assert comma_separated("reward, sandbox") == (Role.REWARD, Role.SANDBOX)
    assert comma_separated("") == ()


CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--managers", "scheduler"), "scheduler"),
        (("--managers", "sandbox,sandbox"), "sandbox"),
        (("--managers", "gpu"), "gpu"),
        (("--managers", "noop", "--cpus", str(CORES + 1)), f"cpus: {CORES + 1} must be between 1 and {CORES}"),
        (("--managers", "inference", "--cpus", "1", "--listen", "127.0.0.1:0"), "engine threads: 1 of 1 cores"),
    ],
    ids=["no manager", "a manager twice", "unknown", "more cores than there are", "an engine needs a core beside it"],
)
def test_what_up_cannot_start_is_refused_by_name(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    result = run("up", "--data-dir", str(tmp_path), *words)
    assert (result.exit_code, told in result.stderr) == (2, True), result.stderr


def test_a_missing_extra_is_named() -> None:
    with pytest.raises(MissingExtraError, match=r"in a checkout .*, pip install '\.\[bench\]'"), needs("bench"):
        importlib.import_module("a_module_that_nobody_has")


def test_a_broken_room_is_not_mistaken_for_a_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"callsheet\.nowhere"), needs("local"):
        importlib.import_module("callsheet.nowhere")


def _failing_app(error: Exception) -> typer.Typer:
    failing = typer.Typer(cls=CallsheetGroup, pretty_exceptions_enable=False)

    @failing.callback()
    def _root() -> None:
        pass

    @failing.command()
    def fail(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
        raise error

    return failing


@pytest.mark.parametrize(
    ("error", "exit_code", "message"),
    [
        (CommandError("the moon is full"), 1, "callsheet: the moon is full"),
        (CommandError("cpus: 0 must be above 0", usage=True), 2, "callsheet: cpus: 0 must be above 0"),
        (OSError("listen: cannot bind"), 1, "callsheet: listen: cannot bind"),
        (TimeoutError(), 1, "callsheet: timed out"),
        (BrokenPipeError(32, "Broken pipe"), 1, ""),
        (FileNotFoundError(2, "No such file or directory", "/a/b"), 1, "callsheet: /a/b: No such file or directory"),
        (ExceptionGroup("several", [ExceptionGroup("more", [ValueError("deep")])]), 1, "callsheet: deep"),
    ],
)
def test_errors_become_one_line_and_an_exit_code(error: Exception, exit_code: int, message: str) -> None:
    result = CliRunner().invoke(_failing_app(error), ["fail"])
    assert (result.exit_code, result.stderr.strip()) == (exit_code, message)


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (
            invalid("nodes", 0, "must be above 0"),
            {"code": "INVALID_ARGUMENT", "field": "nodes", "value": "0", "rule": "must be above 0"},
        ),
        (CommandError("cpus: 0 is too few", usage=True), {"code": "INVALID_ARGUMENT", "message": "cpus: 0 is too few"}),
        (CommandError("no such log", code="NOT_FOUND"), {"code": "NOT_FOUND", "message": "no such log"}),
        (TimeoutError(), {"code": "UNAVAILABLE", "message": "timed out"}),
        (ExceptionGroup("several", [ValueError("deep")]), {"code": "UNKNOWN", "field": "", "message": "deep"}),
    ],
)
def test_with_json_errors_are_json_too(error: Exception, facts: dict[str, str]) -> None:
    result = CliRunner().invoke(_failing_app(error), ["fail", "--json"])
    printed = json.loads(result.stdout)["error"]
    assert set(printed) == {"code", "field", "value", "rule", "message"}
    assert facts.items() <= printed.items()
    assert result.exit_code == CliRunner().invoke(_failing_app(error), ["fail"]).exit_code
    assert result.stderr.startswith("callsheet: ")


def test_wrong_usage_is_json_too() -> None:
    result = run("what-if", "--json", "--pool", "p")
    assert (result.exit_code, json.loads(result.stdout)["error"]["code"]) == (2, "INVALID_ARGUMENT")
    assert "--nodes" in json.loads(result.stdout)["error"]["message"]
    # What a command is to run has its own --json.
    assert run("submit", "env-step", "--patience", "0.1", "--", "x", "--json").stdout == ""


def test_a_traceback_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLSHEET_TRACEBACK", "1")
    result = CliRunner().invoke(_failing_app(ValueError("deep")), ["fail"])
    assert "Traceback" in result.stderr
    assert result.stderr.strip().endswith("callsheet: deep")


def test_the_first_leaf_of_a_group_is_told() -> None:
    leaf = ValueError("leaf")
    assert first_error(ExceptionGroup("outer", [ExceptionGroup("inner", [leaf]), OSError()])) is leaf
    assert describe(OSError()) == "OSError"


def test_outcomes_become_json_without_bytes_and_enums() -> None:
    outcome: Failed[CommandResult] = Failed(
        kind=FailureKind.TIMEOUT, reason=Reason.START_TO_CLOSE, partial=CommandResult(0, stdout=b"half \xff")
    )
    plain = json.loads(json.dumps(plain_outcome(outcome)))
    assert (plain["outcome"], plain["kind"]) == ("failed", "timeout")
    assert plain["partial"]["stdout"] == "half \N{REPLACEMENT CHARACTER}"


def test_a_success_keeps_its_value() -> None:
    plain = plain_outcome(Succeeded(CommandResult(3, stdout=b"text"), action_id="a-1"))
    assert (plain["outcome"], plain["action_id"], plain["value"]["exit_code"]) == ("succeeded", "a-1", 3)


def test_a_data_directory_that_cannot_be_made_is_named() -> None:
    # Not by `run`: it handles signals, which it may do in the main thread alone.
    result = CliRunner().invoke(app, ["scheduler", "--data-dir", "/proc/callsheet", "--listen", "127.0.0.1:0"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("callsheet: data directory '/proc/callsheet' cannot be used: ")


@pytest.mark.parametrize(("name", "lines"), [("a-long-name-inference", 1), ("a-much-longer-name-" * 4, 2)])
def test_tables_cut_no_name_that_one_must_copy(
    name: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_table("Managers", ["manager", "services", "sandboxes #"], [[name, "sandbox, test-suite, scorer", "2"]])
    cells = [line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert "".join(cells) == name
    assert len([cell for cell in cells if cell]) == lines


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        (
            Holder("j", "a", "t", "n", {"cpu": 1.0, "memory": 256.0}, 150.0, 1),
            "1 cpu, 256 memory held by action a of job j on n for 150 s; its client is connected",
        ),
        (
            Holder("j", "", "t", "n", {"memory": 256.0}, 9.5, 0, 60.0),
            "256 memory held by trajectory t of job j on n for 9.5 s; its client is away, its job expires in 60 s",
        ),
        (
            Holder("j", "a", "", "n", {"slots": 1.0}, 1.0, 0),
            "1 slot held by action a of job j on n for 1 s; its client is away",
        ),
        (Holder("", "", "", "n", {"cpu": 2.0}, 3.0, 0), "2 cpu held by another job on n for 3 s"),
    ],
)
def test_holders_are_told_in_words(holder: Holder, words: str) -> None:
    assert holding(holder) == words
