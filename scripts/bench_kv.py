"""Runs `callsheet bench kv` on a real server on this machine's CPU, whose KV cache is short.

    scripts/bench_kv.py sglang [OPTION...]    options go on to `callsheet bench kv`

The server is that of `make conformance-sglang`, installed below build/conformance unless it is there. Its model is a
Llama of random weights, so large that a prompt of 2,000 tokens takes a second or more.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.conformance import COMMON, PLACE, SERVERS, set_up  # noqa: E402
from tests.support.hf_models import save_model, seeded_model, tokenizer_without_end  # noqa: E402

MODEL = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 3,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "initializer_range": 0.02,
}

# The last of an option counts. Longest prefix first is what plain clients fare best with. A server that polls when idle
# would use CPU time that nobody asked for.
ROOM = {
    "sglang": "--max-running-requests 17 --max-total-tokens 6144 --context-length 4096 --schedule-policy lpm "
    "--sleep-on-idle",
}

# Two threads would wait for each other, and for whatever else runs on the machine.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def server_command(name: str, model: Path) -> str:
    """The command line of the server, with {port} still in it."""
    server, python = SERVERS[name], set_up(name)
    variables = COMMON | server.environment | ONE_THREAD
    environment = [f"{key}={value}" for key, value in variables.items()]
    arguments = [part.replace("{model}", str(model)) for part in f"{server.arguments} {ROOM[name]}".split()]
    return shlex.join(["env", "-C", str(PLACE / name), *environment, str(python), *arguments])


def main(name: str, *options: str) -> int:
    """Runs the benchmark; returns its exit code."""
    with tempfile.TemporaryDirectory(prefix="callsheet-kv-model-") as directory:
        model = save_model(Path(directory), seeded_model("llama", 0, **MODEL), tokenizer_without_end())
        command = [sys.executable, "-m", "callsheet.cli.main", "bench", "kv", "--engine", name]
        command += ["--server", server_command(name, model), *options]
        return subprocess.run(command, cwd=ROOT, env=os.environ | ONE_THREAD, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
