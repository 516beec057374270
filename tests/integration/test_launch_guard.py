"""The guard of a launched server, with servers that are a shell: hangs, stop commands, and what they leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from callsheet.managers.inference.launching.command import LaunchOrder
from callsheet.managers.inference.launching.server import LaunchedServer
from callsheet.managers.supervision.standing import ProcessPhase, RestartRule

from tests.support.waiting import block_until

_WAIT_S = 60.0
_QUICK = RestartRule(initial_s=0.05, longest_s=0.1)
_NEVER_AGAIN = RestartRule(initial_s=1000.0, longest_s=1000.0)


@contextmanager
def _server(place: Path, command: str, stop: str = "", rule: RestartRule = _QUICK) -> Iterator[LaunchedServer]:
    order = LaunchOrder(
        command=("sh", "-c", command),
        name="n",
        log_path=str(place / "log"),
        stop_command=("sh", "-c", stop) if stop else (),
        environment={"PATH": "/usr/bin:/bin"},
        stop_grace_s=0.3,
        hung_after_s=0.0,
        rule=rule,
    )
    server = LaunchedServer(order)
    try:
        yield server
    finally:
        server.stop_and_wait()


def test_a_server_that_serves_no_longer_is_started_again(tmp_path: Path) -> None:
    with _server(tmp_path, "trap '' TERM; sleep 1000") as server:
        block_until(lambda: server.standing.phase is ProcessPhase.STARTING)
        server.note_silent(1)
        server.note_serving(2)
        assert server.standing.phase is ProcessPhase.STARTING, "a start that was not found to serve does not"
        server.note_serving(1)
        block_until(lambda: server.standing.phase is ProcessPhase.SERVING)
        server.note_silent(2)
        server.note_silent(1)
        block_until(lambda: server.standing.starts == 2)
        assert server.standing.why == "it did not serve for 0 s"
        assert server.standing.failures == 1


def test_a_stop_command_before_a_start_does_not_hold_up_the_end(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    stop = f"echo run >> {runs}; if [ $(wc -l < {runs}) = 1 ]; then sleep 1000; fi"
    with _server(tmp_path, f"touch {tmp_path}/started", stop) as server:
        block_until(lambda: runs.exists() and runs.read_text() == "run\n")  # A shell makes the file before it writes.
    assert not server._thread.is_alive(), "the guard ends while its manager waits for it"
    assert runs.read_text().split() == ["run", "run"]
    assert not (tmp_path / "started").exists()


def test_the_stop_command_runs_before_each_start_and_after_each_end(tmp_path: Path) -> None:
    with _server(tmp_path, "exit 3", f"echo removed; echo run >> {tmp_path}/runs", _NEVER_AGAIN) as server:
        block_until(lambda: server.standing.phase is ProcessPhase.WAITING and server.standing.failures == 1)
        assert server.standing.why == "exit code 3"
    assert (tmp_path / "runs").read_text().split() == ["run"] * 2
    assert (tmp_path / "log").read_text().count("removed") == 2


def test_a_program_that_is_not_there_is_told_in_the_log(tmp_path: Path) -> None:
    order = LaunchOrder(
        command=(str(tmp_path / "nothing"),), name="n", log_path=str(tmp_path / "log"), rule=_NEVER_AGAIN
    )
    server = LaunchedServer(order)
    block_until(lambda: server.standing.failures == 1)
    server.stop_and_wait()
    assert "cannot be started: [Errno 2]" in (tmp_path / "log").read_text()
