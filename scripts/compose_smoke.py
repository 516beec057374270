"""Runs the stack of docker-compose.yml for real, without a network: `make compose-smoke`.

It builds stand-ins for the base images from Debian's packages and takes wheels from this machine, so that neither the
builds nor the containers reach anything. Then it brings the stack up, runs the demo, kills each service once under a
load, checks the accounts of all actions, and takes everything away again. It takes about five minutes.

It needs a Docker engine with BuildKit that `docker` reaches (DOCKER_HOST), mmdebstrap, and a package index and Debian's
mirror for its own downloads. STAND_IN_IMAGE names an image to use in place of the one that it would build.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

from callsheet.benchmarks.demo.inputs import prepare_inputs
from callsheet.environments.coding.packages import TEST_REQUIREMENTS, default_cache_directory
from callsheet.environments.games.frozen_lake import GAME_REQUIREMENTS

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "compose-smoke"
PROJECT = WORK / "project"
WHEELS = WORK / "wheels"
NAME = "callsheet-smoke"
STAND_IN = "callsheet-stand-in:smoke"
DEBIAN = "bookworm"
PACKAGES = "python3,python3-venv,bubblewrap,postgresql-15,redis-server,ca-certificates"
# Debian's Python 3.11.2 is older than what the lock was made with.
MORE_WHEELS = ("hatchling>=1.27", "async-timeout>=4.0.3")
EXTRAS = "cli,dashboard,gateway,scheduler,telemetry,sandbox,inference,reward"
# Not its entry point, which ends with 0 whatever compose says.
COMPOSE = [str(resources.files("compose") / "docker-compose"), "-p", NAME, "--profile", "demo"]
SERVICES = ("postgres", "redis", "scheduler", "sandbox", "inference", "reward", "gateway", "dashboard")
BUILD_S = 1800.0
COMMAND_S = 300.0
RECOVERY_S = 180.0
# Trajectories that must complete before a service is killed, and after it has come back.
PROGRESS = 6
KINDS = ("generate", "env_reset", "env_step", "reward")
SCRAPE = """
import os, ssl, urllib.request
headers = {"authorization": "Bearer " + os.environ["TOKEN"]}
request = urllib.request.Request("https://localhost:9464/metrics", headers=headers)
context = ssl.create_default_context(cafile=os.environ["CALLSHEET_TLS_CA"])
print(urllib.request.urlopen(request, timeout=30, context=context).read().decode())
"""


class SmokeError(Exception):
    """The stack did not do what it must, or something that this needs is missing."""


def say(text: str) -> None:
    """Prints a line about what is going on, at once."""
    print(f"compose-smoke: {text}", flush=True)


def run(command: Sequence[str], *, timeout_s: float = COMMAND_S, environment: Mapping[str, str] | None = None) -> str:
    """Runs a command in the project's directory and returns what it printed.

    Raises:
        SmokeError: It failed; the message has its last words.
    """
    place = PROJECT if PROJECT.is_dir() else ROOT
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=timeout_s
    )
    if done.returncode != 0:
        words = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
        raise SmokeError(f"{' '.join(map(str, command))}: exit status {done.returncode}:\n{words}")
    return done.stdout


def compose(*words: str, timeout_s: float = COMMAND_S) -> str:
    """Runs a command of compose on the project."""
    return run([*COMPOSE, *words], timeout_s=timeout_s, environment=own_environment())


def own_environment() -> dict[str, str]:
    """This process's, without the user's variables for another stack."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CALLSHEET_")}


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Says how long a block took."""
    began = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - began:.0f} s")


def check_needs() -> None:
    """Raises SmokeError naming everything that is missing."""
    missing = []
    if shutil.which("docker") is None:
        missing.append("docker, the engine's command")
    else:
        try:
            run(["docker", "version"])
        except SmokeError as error:
            missing.append(f"a Docker engine that answers (DOCKER_HOST names it): {str(error).splitlines()[-1]}")
    if "STAND_IN_IMAGE" not in os.environ and shutil.which("mmdebstrap") is None:
        missing.append("mmdebstrap, which makes the stand-in of the base images")
    if missing:
        raise SmokeError("this is missing:\n  " + "\n  ".join(missing))


def make_stand_in() -> str:
    """Returns an image that can stand in for all three bases."""
    if given := os.environ.get("STAND_IN_IMAGE"):
        return given
    with suppress(SmokeError):
        run(["docker", "image", "inspect", STAND_IN])
        return STAND_IN
    tar = WORK / "stand-in.tar"
    with timed(f"stand-in of the base images from Debian's packages ({PACKAGES})"):
        run(["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", DEBIAN, str(tar)], timeout_s=BUILD_S)
        run(["docker", "import", str(tar), STAND_IN])
    tar.unlink()
    return STAND_IN


def make_wheels() -> None:
    """Fetches all that pip will need in the images."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(WHEELS)]
    with timed("wheels"):
        lock = ["--constraint", str(ROOT / "requirements.lock")]
        run([*pip, *lock, *MORE_WHEELS, f"{ROOT}[{EXTRAS}]"], timeout_s=BUILD_S)
        run([*pip, *TEST_REQUIREMENTS, *GAME_REQUIREMENTS], timeout_s=BUILD_S)
    for own in WHEELS.glob("callsheet-*.whl"):
        own.unlink()  # the images make it from the sources


def make_project(stand_in: str) -> None:
    """Copies the tracked files, with secrets of their own and all that the images need."""
    shutil.rmtree(PROJECT, ignore_errors=True)
    listed = run(["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (PROJECT / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, PROJECT / name)
    for wheel in WHEELS.glob("*.whl"):
        os.link(wheel, PROJECT / "deploy/images/wheels" / wheel.name)
    cache = default_cache_directory(os.environ)
    prepare_inputs(cache, lambda _: None)
    shutil.copytree(cache / "sources", PROJECT / "deploy/images/inputs/sources")
    settings = {
        "PYTHON_IMAGE": stand_in,
        "POSTGRES_IMAGE": stand_in,
        "REDIS_IMAGE": stand_in,
        "PIP_NO_INDEX": "1",
        "BUILD_NETWORK": "none",
        "CALLSHEET_TAG": "smoke",
        "CALLSHEET_PORT": "0",
        "CALLSHEET_GATEWAY_PORT": "0",
    }
    (PROJECT / ".env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    run([sys.executable, "-m", "callsheet.cli.main", "compose-setup"])


class Load:
    """The load that runs in a container; `completed` and `lost` count its trajectories that have ended."""

    def __init__(self) -> None:
        words = ["run", "--rm", "-T", "--no-deps", "--entrypoint", "python3"]
        words += ["--volume", f"{ROOT}/scripts/programs/compose_load.py:/load.py:ro", "demo", "/load.py"]
        self._log = (WORK / "load.log").open("w")
        self._process = subprocess.Popen(
            [*COMPOSE, *words],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=own_environment(),
        )
        self.completed = self.lost = 0
        self._accounts: dict[str, Any] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, completed: int) -> None:
        """Waits until so many more trajectories have completed.

        Raises:
            SmokeError: The load ended, or it took too long.
        """
        target = self.completed + completed
        deadline = time.monotonic() + RECOVERY_S
        while self.completed < target:
            if not self._reader.is_alive():
                raise SmokeError(f"the load ended; {WORK}/load.log:\n{(WORK / 'load.log').read_text()[-2000:]}")
            if time.monotonic() > deadline:
                raise SmokeError(f"no {completed} trajectories completed within {RECOVERY_S:g} s")
            time.sleep(0.1)

    def finish(self) -> dict[str, Any]:
        """Ends the load and returns its accounts.

        Raises:
            SmokeError: It told none.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join(COMMAND_S)
        if not self._accounts:
            raise SmokeError(f"the load told no accounts; {WORK}/load.log:\n{(WORK / 'load.log').read_text()[-2000:]}")
        self._process.wait(COMMAND_S)
        return self._accounts

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            read = json.loads(line)
            self._accounts = read.get("accounts", self._accounts)
            self.completed += read.get("end") == "completed"
            self.lost += read.get("end") == "lost"

    def kill(self) -> None:
        """Ends the client's process; its container, if it is left, is taken away with the project."""
        self._process.kill()
        self._process.wait()
        self._log.close()


def inspect(service: str, template: str) -> str:
    """What the engine says of a service's container."""
    container = compose("ps", "--all", "--quiet", service).strip()
    return run(["docker", "inspect", "--format", template, container]).strip()


def kill_service(service: str, stand_in: str) -> None:
    """Kills a service's first process from outside, as `docker kill` would keep the engine from starting it again.

    Raises:
        SmokeError: It did not come back.
    """
    pid = inspect(service, "{{.State.Pid}}")
    # A container's first process takes no SIGKILL from inside.
    run(["docker", "run", "--rm", "--pid", "host", "--network", "none", stand_in, "sh", "-c", f"kill -9 {pid}"])
    deadline = time.monotonic() + RECOVERY_S
    while True:
        state = inspect(service, "{{.State.Pid}} {{.State.Health.Status}} {{.RestartCount}}").split()
        if state[0] != pid and state[1] == "healthy" and int(state[2]) >= 1:
            return
        if time.monotonic() > deadline:
            words = compose("logs", "--tail", "20", service)
            raise SmokeError(f"{service} is not back after {RECOVERY_S:g} s ({state}):\n{words}")
        time.sleep(0.5)


def run_demo() -> None:
    """Raises SmokeError if an episode was lost or a bug not caught."""
    report = json.loads(compose("run", "--rm", "-T", "demo", "demo", "--scheduler=scheduler:7077", "--job=demo",
                                "--trajectories=6", "--json"))  # fmt: skip
    rewards = report["rewards"]
    if rewards["lost"] or rewards["total"] != 6 or rewards["bugs_confirmed"] != rewards["bugs_total"]:
        raise SmokeError(f"the demo: {rewards}")
    say(f"demo: {rewards['solved']} of {rewards['total']} episodes solved, none lost, failures {report['failures']}")


def check_accounts(accounts: dict[str, Any], load: Load) -> None:
    """Raises SmokeError unless every action has one outcome, the right one, and nothing is left of the job."""
    say(f"{load.completed} trajectories completed, {load.lost} lost to kills; {accounts['actions']} actions:")
    for kind, count in sorted(accounts["kinds"].items()):
        say(f"  {count:5} {kind}")
    for what in (*accounts["failures"], *accounts["refused"]):
        say(f"  {what[:300]}")
    if accounts["wrong"]:
        raise SmokeError("wrong:\n  " + "\n  ".join(accounts["wrong"][:20]))
    if not accounts["kinds"].get("succeeded"):
        raise SmokeError("no action succeeded")
    token = next((PROJECT / "secrets").glob("admin.token")).read_text()
    status = json.loads(
        compose("exec", "-T", "-e", f"CALLSHEET_TOKEN={token}", "scheduler", "callsheet", "status", "--json")
    )
    left = [manager for manager in status["managers"] if manager["attempts"] or manager["sandboxes"]]
    if status["jobs"] or left or len(status["managers"]) != 3:
        raise SmokeError(f"something is left, or missing: {status}")
    check_metrics(token)


def check_metrics(token: str) -> None:
    """Raises SmokeError unless the scheduler's page of metrics counts actions of every kind."""
    words = ["-e", f"TOKEN={token}", "scheduler", "python3", "-c", SCRAPE]
    page = compose("exec", "-T", *words)
    missing = [kind for kind in KINDS if f'callsheet_actions_total{{failure="",kind="{kind}"' not in page]
    if missing:
        raise SmokeError(f"the page of metrics counts no {', '.join(missing)}:\n{page[:2000]}")
    say(f"metrics: {len(page.splitlines())} lines")


def take_down() -> None:
    """Takes containers, networks and volumes away, those of an interrupted `compose run` too, which `down` leaves."""
    label = f"label=com.docker.compose.project={NAME}"
    single = run(["docker", "ps", "--quiet", "--filter", label, "--filter", "label=com.docker.compose.oneoff=True"])
    if single.split():
        run(["docker", "rm", "--force", *single.split()])
    compose("down", "--volumes", "--remove-orphans", "--timeout", "20")


def exercise(stand_in: str) -> None:
    """Everything with a running stack."""
    with timed("build without a network"):
        compose("build", timeout_s=BUILD_S)
    with timed("up, until all are healthy"):
        compose("up", "--detach", "--wait", *SERVICES)
    with timed("demo"):
        run_demo()
    load = Load()
    try:
        load.wait_for(PROGRESS)
        for service in SERVICES:
            before = load.lost
            with timed(f"{service} killed, healthy again, {PROGRESS} trajectories more"):
                kill_service(service, stand_in)
                load.wait_for(PROGRESS)
            say(f"  {load.lost - before} trajectories lost meanwhile")
        check_accounts(load.finish(), load)
    finally:
        load.kill()


def main() -> None:
    """Runs it; exits with 1 if something is missing, or the stack failed."""
    try:
        check_needs()
    except SmokeError as error:
        sys.exit(f"compose-smoke: {error}")
    # What was started is taken away then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("compose-smoke: stopped"))
    began = time.monotonic()
    WORK.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(PROJECT, ignore_errors=True)
    try:
        stand_in = make_stand_in()
        make_wheels()
        make_project(stand_in)
        try:
            exercise(stand_in)
        finally:
            with timed("down"):
                take_down()
    except SmokeError as error:
        sys.exit(f"compose-smoke: FAILED: {error}")
    say(f"all well, in {(time.monotonic() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
