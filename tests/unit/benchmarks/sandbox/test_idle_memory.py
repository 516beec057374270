"""What an idle sandbox takes is told apart from what its manager takes."""

from __future__ import annotations

import subprocess
import sys

from callsheet.benchmarks.sandbox.measuring import idle_memory


def test_a_sandbox_without_a_group_of_its_own_is_not_charged_with_its_managers() -> None:
    waits = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        found = idle_memory([process.pid])
        process.communicate()
    assert found.group_mib is None
    assert found.processes_mib is not None
    assert found.mib == found.processes_mib > 0
