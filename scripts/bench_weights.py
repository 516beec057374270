"""Runs `callsheet bench weights` over two real servers on this machine's CPU, and kills one in two of its faults.

    scripts/bench_weights.py sglang [OPTION...]    options go on to `callsheet bench weights`

The servers are those of `make conformance-sglang`, installed below build/conformance unless they are there, with a
small model of random weights.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.conformance import COMMON, PLACE, SERVERS, set_up  # noqa: E402
from tests.support.real_engines import conformance_model  # noqa: E402

# One place more than half of the trajectories, as no attempt takes the canary's; the last of an option counts.
ROOM = {
    "sglang": "--max-running-requests 33 --max-total-tokens 65536",
    "vllm": "--max-num-seqs 33",
}

# Two servers and the reference share this machine's cores; threads of small kernels would mostly wait for each other.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def server_command(name: str, model: Path) -> str:
    """The command line of a server, with {port} still in it."""
    server, python = SERVERS[name], set_up(name)
    variables = COMMON | server.environment | ONE_THREAD
    environment = [f"{key}={value}" for key, value in variables.items()]
    arguments = [part.replace("{model}", str(model)) for part in f"{server.arguments} {ROOM[name]}".split()]
    return shlex.join(["env", "-C", str(PLACE / name), *environment, str(python), *arguments])


def main(name: str, *options: str) -> int:
    """Runs the benchmark; returns its exit code."""
    model = conformance_model(PLACE / name / "weights-bench-model", 0)
    command = [sys.executable, "-m", "callsheet.cli.main", "bench", "weights", "--engine", name]
    command += ["--server", server_command(name, model), "--model", str(model), *options]
    return subprocess.run(command, cwd=ROOT, env=os.environ | ONE_THREAD, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
