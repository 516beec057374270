"""The parts of launched servers that do no I/O, and their log."""

from __future__ import annotations

from pathlib import Path

import pytest
from callsheet.managers.inference.launching.bounded_log import BoundedLog
from callsheet.managers.inference.launching.command import (
    LaunchNeeds,
    command_template,
    fill_in,
    server_environment,
    server_name,
)
from callsheet.managers.inference.launching.standing import (
    RestartRule,
    ServerPhase,
    ServerStanding,
    after_silent_look,
    begun,
    describe,
    ended,
    is_hung,
    now_serves,
    overdue_at,
)
from callsheet.managers.inference.launching.wire import (
    LaunchOrder,
    decode_order,
    decode_standing,
    encode_order,
    encode_standing,
)
from callsheet.managers.inference.settings import InferenceSettings

_NEEDS = LaunchNeeds(arguments=("--port", "{port}"), environment={"MODE": "1"})
_RULE = RestartRule(initial_s=1.0, longest_s=3.0, healthy_after_s=60.0, first_failures=2, start_timeout_s=9.0)


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
    assert server_environment(own, _NEEDS) == {"PYTHONUNBUFFERED": "1", "PATH": "/bin", "MODE": "0"}


def test_a_name_for_files_and_containers() -> None:
    assert server_name("node/7-inference#1") == "engine-node-7-inference-1"


def test_a_server_that_never_served_is_given_up_and_one_that_did_is_not() -> None:
    first = ended(begun(ServerStanding(), 0.0, port=1, pid=2), "exit code 1", 1.0, _RULE)
    assert (first.phase, first.next_start, first.pid) == (ServerPhase.WAITING, 2.0, 0)
    assert "once in a row (exit code 1) and is started again in 1 s; its log is LOG" in describe(first, 1.0, "LOG")
    given_up = ended(begun(first, 2.0, port=3, pid=4), "exit code 1", 3.0, _RULE)
    assert given_up.phase is ServerPhase.GIVEN_UP
    assert describe(given_up, 3.0, "LOG") == "its server ended 2 times and never served: exit code 1; its log is LOG"
    standing = now_serves(begun(first, 2.0, port=3, pid=4), 3.0)
    assert describe(standing, 3.0, "LOG") == ""
    for failures in range(2, 9):
        standing = ended(standing, "signal SIGKILL", 4.0, _RULE)
        assert (standing.phase, standing.failures) == (ServerPhase.WAITING, failures)
        standing = begun(standing, 5.0, port=1, pid=1)
        assert "is starting for 1 s, after it ended" in describe(standing, 6.0, "LOG")
    assert ended(standing, "", 10.0, _RULE).next_start == 13.0  # The longest wait.
    assert ended(now_serves(standing, 10.0), "", 70.0, _RULE).failures == 1  # It was healthy in between.


def test_only_a_start_has_to_come_to_an_end() -> None:
    starting = begun(ServerStanding(), 1.0, port=1, pid=2)
    assert overdue_at(starting, _RULE) == 10.0
    assert overdue_at(now_serves(starting, 2.0), _RULE) is None
    assert now_serves(ServerStanding(), 2.0) == ServerStanding()


def test_what_the_two_tell_each_other_comes_through() -> None:
    order = LaunchOrder(command=("a", "{port}"), name="n", log_path="/l", environment={"A": "\n"}, rule=_RULE)
    assert decode_order(encode_order(order)) == order
    standing = begun(ServerStanding(why="x\ny"), 1.5, port=1, pid=2)
    assert decode_standing(encode_standing(standing)) == standing
    assert encode_standing(standing).count(b"\n") == 1


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


def test_a_server_hangs_once_it_served_and_then_did_not_for_long() -> None:
    serving = now_serves(begun(ServerStanding(), 0.0, port=1, pid=2), 1.0)
    rule = RestartRule(hung_after_s=10.0)
    silence = after_silent_look(None, 1, 5.0)
    assert after_silent_look(silence, 1, 9.0) is silence
    assert [is_hung(serving, silence, now, rule) for now in (14.0, 15.0)] == [False, True]
    assert not is_hung(begun(serving, 6.0, port=1, pid=2), silence, 99.0, rule), "another start"
    assert not is_hung(begun(ServerStanding(), 0.0, port=1, pid=2), silence, 99.0, rule), "it never served"
    assert after_silent_look(silence, 2, 20.0).since == 20.0
