"""The watchdog of a launched server, with servers that are a shell: hangs, stop commands, and what they leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from callsheet.managers.inference.launching.server import LaunchedServer
from callsheet.managers.inference.launching.standing import RestartRule, ServerPhase
from callsheet.managers.inference.launching.wire import LaunchOrder

from tests.support.waiting import block_until

_WAIT_S = 60.0
_QUICK = RestartRule(initial_s=0.05, longest_s=0.1, stop_grace_s=0.3, hung_after_s=0.0)
_NEVER_AGAIN = replace(_QUICK, initial_s=1000.0, longest_s=1000.0)


@contextmanager
def _server(place: Path, command: str, stop: str = "", rule: RestartRule = _QUICK) -> Iterator[LaunchedServer]:
    order = LaunchOrder(
        command=("sh", "-c", command),
        name="n",
        log_path=str(place / "log"),
        stop_command=("sh", "-c", stop) if stop else (),
        environment={"PATH": "/usr/bin:/bin"},
        rule=rule,
    )
    server = LaunchedServer(order)
    try:
        yield server
    finally:
        server.stop_and_wait()


def test_a_server_that_serves_no_longer_is_started_again(tmp_path: Path) -> None:
    with _server(tmp_path, "trap '' TERM; sleep 1000") as server:
        block_until(lambda: server.standing.phase is ServerPhase.STARTING)
        server.note_silent(1)
        server.note_serving(2)
        assert server.standing.phase is ServerPhase.STARTING, "a start that was not found to serve does not"
        server.note_serving(1)
        block_until(lambda: server.standing.phase is ServerPhase.SERVING)
        server.note_silent(2)
        server.note_silent(1)
        block_until(lambda: server.standing.starts == 2)
        assert server.standing.why == "it did not serve for 0 s"
        assert server.standing.failures == 1


def test_a_stop_command_before_a_start_does_not_hold_up_the_end(tmp_path: Path) -> None:
    stop = f"echo run >> {tmp_path}/runs; if [ $(wc -l < {tmp_path}/runs) = 1 ]; then sleep 1000; fi"
    with _server(tmp_path, "sleep 1000", stop) as server:
        block_until((tmp_path / "runs").exists)
    assert server._process.returncode == 0, "the watchdog ends while its manager waits for it"
    assert (tmp_path / "runs").read_text().split() == ["run", "run"]
    assert server.standing.starts == 0


def test_what_could_not_be_removed_is_removed_at_the_end_though_no_server_runs(tmp_path: Path) -> None:
    stop = f"echo run >> {tmp_path}/runs; echo removed; test -e {tmp_path}/may"
    with _server(tmp_path, "exit 3", stop, _NEVER_AGAIN) as server:
        block_until(lambda: server.standing.phase is ServerPhase.WAITING and server.standing.failures == 1)
        (tmp_path / "may").touch()
    assert (tmp_path / "runs").read_text().split() == ["run"] * 3
    assert (tmp_path / "log").read_text().count("removed") == 3
