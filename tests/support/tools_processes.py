"""Tools managers as processes, and what their file says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from callsheet.managers.supervision.processes import command_module


def write_tools(directory: Path, url: str, quota: str) -> Path:
    """A tools file with an API, a function and a judge that spend one key."""
    path = directory / "tools.toml"
    path.write_text(f"""
[keys.k]
[quotas.k]
{quota}
[tools.search]
url = "{url}"
key = "k"
[tools.mean]
function = "statistics:mean"
[judges.strict]
url = "{url}/v1"
model = "large"
key = "k"
""")
    return path


@contextmanager
def tools_managers(
    count: int, address: str, tools: Path, redis_url: str | None = None, name: str = "tools"
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Tools managers that register with a scheduler, each a process; several count together."""
    command = [sys.executable, "-m", command_module(), "manager", "tools", "--scheduler", address]
    command += ["--tools-file", str(tools), "--cpus", "1"] + ([] if redis_url else ["--node-id", name])
    command += ["--quota-redis", redis_url] if redis_url is not None else []
    processes = []
    with ExitStack() as stack:
        for number in range(count):
            process = subprocess.Popen([*command, "--manager-id", f"{name}-{number}"], stderr=subprocess.DEVNULL)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            processes.append(process)
        yield processes
