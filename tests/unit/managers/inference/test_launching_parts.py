"""The parts of launched servers that do no I/O, and their log."""

from __future__ import annotations

from pathlib import Path

import pytest
from callsheet.managers.inference.launching.command import (
    LaunchNeeds,
    command_template,
    fill_in,
    server_environment,
    server_name,
)
from callsheet.managers.inference.launching.server import describe
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.supervision.bounded_log import BoundedLog
from callsheet.managers.supervision.standing import ProcessPhase, ProcessStanding, RestartRule, begun, ended, now_serves

_NEEDS = LaunchNeeds(arguments=("--port", "{port}"), environment={"MODE": "1"})
_RULE = RestartRule(initial_s=1.0, longest_s=3.0, healthy_after_s=60.0, first_failures=1)


def test_a_command_gets_its_port_where_it_says_or_at_its_end() -> None:
    assert fill_in(command_template("serve 'a b'", _NEEDS), port=7, name="n") == ["serve", "a b", "--port", "7"]
    template = command_template("docker run --name {name} -p {host}:{port}:80 image --json '{\"a\": {}}'", _NEEDS)
    assert fill_in(template, port=7, name="n")[3:] == ["n", "-p", "127.0.0.1:7:80", "image", "--json", '{"a": {}}']


@pytest.mark.parametrize(
    ("text", "rule"), [("", "must be a command"), ("serve 'a", "No closing quotation"), ("serve", "must have {port}")]
)
def test_a_command_that_cannot_be_run_is_refused(text: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        command_template(text, LaunchNeeds())


def test_a_server_gets_no_secrets_of_ours_and_keeps_what_its_user_set() -> None:
    own = {"PATH": "/bin", "MODE": "0", "CALLSHEET_TOKEN": "secret", "CALLSHEET_ENGINE_API_KEY": "secret"}
    direct = {**dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost"), "FORWARDED_ALLOW_IPS": ""}
    assert server_environment(own, _NEEDS) == {"PYTHONUNBUFFERED": "1", "PATH": "/bin", "MODE": "0", **direct}


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_a_server_calls_itself_past_the_proxies_of_its_user(name: str) -> None:
    found = server_environment({name: "a.example", "http_proxy": "http://proxy"}, _NEEDS)
    assert found["http_proxy"] == "http://proxy"
    assert found["no_proxy"] == found["NO_PROXY"] == "a.example,127.0.0.1,localhost"


def test_a_server_takes_nobodys_word_for_anothers_address() -> None:
    assert server_environment({"FORWARDED_ALLOW_IPS": "*"}, _NEEDS)["FORWARDED_ALLOW_IPS"] == ""


def test_a_name_for_files_and_containers() -> None:
    assert server_name("node/7-inference#1") == "engine-node-7-inference-1"


def test_a_server_that_never_served_is_given_up_and_one_that_did_is_not() -> None:
    first = ended(begun(ProcessStanding(), 0.0), "exit code 1", 1.0, _RULE)
    assert (first.phase, first.next_start) == (ProcessPhase.WAITING, 2.0)
    assert "once in a row (exit code 1) and is started again in 1 s; its log is LOG" in describe(first, 1.0, "LOG")
    given_up = ended(begun(first, 2.0), "exit code 1", 3.0, _RULE)
    assert given_up.phase is ProcessPhase.GIVEN_UP
    assert describe(given_up, 3.0, "LOG") == "its server ended 2 times and never served: exit code 1; its log is LOG"
    standing = now_serves(begun(first, 2.0), 3.0)
    assert describe(standing, 3.0, "LOG") == ""
    for failures in range(2, 9):
        standing = ended(standing, "signal SIGKILL", 4.0, _RULE)
        assert (standing.phase, standing.failures) == (ProcessPhase.WAITING, failures)
        standing = begun(standing, 5.0)
        assert "is starting for 1 s, after it ended" in describe(standing, 6.0, "LOG")
    assert ended(standing, "", 10.0, _RULE).next_start == 13.0  # The longest wait.
    assert ended(now_serves(standing, 10.0), "", 70.0, _RULE).failures == 1  # It was healthy in between.


def test_ends_that_were_expected_are_no_failures_and_a_row_of_failures_is_given_up() -> None:
    rule = RestartRule(initial_s=1.0, most_failures=1)
    standing = now_serves(begun(ProcessStanding(), 0.0), 1.0)
    assert ended(standing, "signal SIGKILL", 2.0, rule, expected=True).failures == 0
    once = ended(standing, "exit code 1", 2.0, rule)
    assert (once.phase, once.failures) == (ProcessPhase.WAITING, 1)
    assert ended(begun(once, 3.0), "exit code 1", 4.0, rule).phase is ProcessPhase.GIVEN_UP
    assert now_serves(ProcessStanding(), 2.0) == ProcessStanding()


def test_a_log_is_for_its_owner_and_bounded(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "logs" / "engine.log", most_bytes=10)
    for number in range(5):
        log.write(b"line %d\n" % number)
    log.close()
    assert log.path.stat().st_mode & 0o777 == 0o600
    assert (log.path.read_bytes(), log.path.with_suffix(".log.old").read_bytes()) == (
        b"line 4\n",
        b"line 2\nline 3\n",
    )


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must not be given with launch"):
        InferenceSettings(engine="sglang", urls=("http://h:1",), launches=("serve",))
    with pytest.raises(ValueError, match="needs an engine that is a server"):
        InferenceSettings(launches=("serve",))
    with pytest.raises(ValueError, match="launches exactly one"):
        _ = InferenceSettings(engine="sglang", launches=("one", "two")).launch_command
