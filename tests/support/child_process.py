"""A child process with one habit, to test what its parent does: `python -m tests.support.child_process HABIT`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from callsheet.deploy.child import ParentLink
from callsheet.managers.supervision.parent import PARENT_VARIABLE, READY_VARIABLE
from callsheet.managers.supervision.processes import ProcessSpec

ROOT = Path(__file__).resolve().parents[2]


def child_spec(*habit: str, log_path: Path | None = None, ready_timeout_s: float = 30.0) -> ProcessSpec:
    """How to start a child with a habit."""
    return ProcessSpec(
        name="child",
        module="tests.support.child_process",
        arguments=habit,
        environment={"PYTHONPATH": str(ROOT)},
        log_path=log_path,
        ready_timeout_s=ready_timeout_s,
    )


def main() -> None:
    """Does what the first argument says."""
    link = ParentLink.adopt()
    habit = sys.argv[1]
    if habit == "fail":
        sys.stderr.write("the disk is on fire\n")
        raise SystemExit(3)
    if habit == "once":
        _fail_the_second_time(Path(sys.argv[2]))
    if habit == "silent":
        for marker in map(Path, sys.argv[2:]):
            marker.write_text(str(os.getpid()))
        signal.pause()
    if habit == "leaving":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if habit == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if habit == "parent":
        _be_a_parent(link)
    leaked = [name for name in (PARENT_VARIABLE, READY_VARIABLE) if name in os.environ]
    link.report_ready(pid=str(os.getpid()), leaked=",".join(leaked))
    while True:
        signal.pause()


def _fail_the_second_time(marker: Path) -> None:
    if marker.exists():
        raise SystemExit(4)
    marker.touch()


def _be_a_parent(link: ParentLink) -> None:
    """Starts a child that is bound to this process's life, reports its id, and waits to be killed."""
    command = [sys.executable, "-m", "tests.support.child_process", "quiet"]
    with subprocess.Popen(command, env={**os.environ, PARENT_VARIABLE: str(os.getpid())}) as child:
        link.report_ready(child=str(child.pid))
        signal.pause()


if __name__ == "__main__":
    main()
