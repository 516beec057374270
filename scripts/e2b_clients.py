"""Runs E2B's own client and programs that use it, as they are published, against `callsheet facade e2b`.

    scripts/e2b_clients.py                  all of them
    scripts/e2b_clients.py 2.63.0           one

They are installed from PyPI below build/e2b, in environments of their own: they need versions of packages that
Callsheet's environment may not have. Each goes through a scenario beside this script, with a scheduler, a sandbox
manager and a facade that are real processes. The exit code is 1 if something differs from what is expected there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts import set_up  # noqa: E402
from scripts.agents import wait_ready  # noqa: E402
from tests.support.ports import free_port  # noqa: E402

PLACE = ROOT / "build" / "e2b"
# What is installed, and the scenario. E2B's own client: the newest, the one that ROCK's server is made for, the oldest.
CLIENTS = {
    "2.63.0": ("e2b==2.63.0", "e2b_scenario"),
    "2.34.0": ("e2b==2.34.0", "e2b_scenario"),
    "2.25.1": ("e2b==2.25.1", "e2b_scenario"),
    "smolagents": ("smolagents[e2b]==1.26.0", "e2b_smolagents"),
    "openai-agents": ("openai-agents[e2b]==0.24.0", "e2b_openai_agents"),
}
# What sandboxes of E2B's template for code have, too, by package: the code that smolagents sends imports it.
STAGED = {"numpy": "numpy", "pillow": "PIL"}
STAGE = PLACE / "stage"
CALLSHEET = Path(sys.executable).parent / "callsheet"
KEY = "e2b_0123"
STOP_TIMEOUT_S = 30
SCENARIO_TIMEOUT_S = 600


def install(name: str, package: str) -> Path:
    """Installs a client, unless it is there; returns its interpreter."""
    place = PLACE / name
    python = place / "bin" / "python"
    if not (place / package).exists():
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        set_up.install("--quiet", package, into=python)
        (place / package).touch()
    return python


def install_staged() -> None:
    """Installs what the sandboxes see, unless it is there."""
    if not all((STAGE / module).exists() for module in STAGED.values()):
        shutil.rmtree(STAGE, ignore_errors=True)
        set_up.install("--quiet", "--target", str(STAGE), *STAGED)


@contextmanager
def process(name: str, command: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program of Callsheet; its log is below build/e2b."""
    with (PLACE / f"{name}.log").open("wb") as log:
        running = subprocess.Popen(
            [str(CALLSHEET), *command], stdout=subprocess.PIPE, stderr=log, env={**os.environ, **environment}
        )
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            running.kill()


@contextmanager
def facade() -> Iterator[str]:
    """Runs a scheduler, a sandbox manager and a facade; gives the facade's URL."""
    data = PLACE / "data"
    shutil.rmtree(data, ignore_errors=True)
    up = ["up", "--json", "--data-dir", str(data), "--managers", "sandbox", "--listen", "127.0.0.1:0"]
    with process("up", up, CALLSHEET_STAGE=str(STAGE)) as stack:
        assert stack.stdout is not None
        said = stack.stdout.readline()
        if not said:
            raise SystemExit(f"callsheet up ended; its log is {PLACE / 'up.log'}.")
        listen = f"127.0.0.1:{free_port()}"
        command = ["facade", "e2b", "--scheduler", json.loads(said)["address"], "--listen", listen]
        with process("facade", command, CALLSHEET_FACADE_TOKEN=KEY):
            url = f"http://{listen}"
            wait_ready(f"{url}/")
            yield url


def main() -> int:
    """Runs the clients that are named; returns 1 if one found a difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("clients", nargs="*", choices=[[], *CLIENTS], default=[])
    PLACE.mkdir(parents=True, exist_ok=True)
    install_staged()
    failed = False
    for name in parser.parse_args().clients or CLIENTS:
        package, scenario = CLIENTS[name]
        python = install(name, package)
        with facade() as url:
            print(package, flush=True)
            own = {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": KEY, "NO_PROXY": "127.0.0.1"}
            begun = time.monotonic()
            # As a module: beside this script are modules with names of packages, such as `agents`.
            command = [str(python), "-m", f"scripts.{scenario}"]
            environment = {**os.environ, **own}
            done = subprocess.run(command, cwd=ROOT, env=environment, timeout=SCENARIO_TIMEOUT_S, check=False)
            failed = failed or done.returncode != 0
            print(f"{package}: exit code {done.returncode} ({time.monotonic() - begun:.1f} s)", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
