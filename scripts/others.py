"""Runs programs of others, as they are published, with this checkout. `make` has a target for each kind.

    scripts/others.py trainers        all programs of a kind
    scripts/others.py trainers trl    all versions of one; trl-1.16.0 is a single run

The table of a kind has its runs: what is installed below build/, what is started for the time of the run, and the
command. The commands that are no tests are in `scripts/programs`. Exit code 1 if a run failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.lab_table import LAB, Results, note_results  # noqa: E402
from scripts.programs.agents import AGENTS  # noqa: E402
from scripts.set_up import install  # noqa: E402
from tests.support.ports import free_port  # noqa: E402

BUILD = ROOT / "build"
CALLSHEET = str(Path(sys.executable).with_name("callsheet"))
RECIPES = ROOT / "tests" / "support" / "conformance"
TRAINER_TESTS = ROOT / "tests" / "trainers"
ENGINES_PAGE = LAB / "2026-11-engines.md"
MARKS = {"ok": "yes", "lacks": "-", "failed": "**no**"}
READY_TIMEOUT_S = 900
STOP_TIMEOUT_S = 30
# For a whole run; tests have time-outs of their own.
RUN_TIMEOUT_S = 4 * 3600
KEY = "e2b_0123"
TORCH = "torch==2.13.0"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
QUIET = OFFLINE | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
# Servers and the reference share this machine's cores; threads of small kernels would mostly wait for each other.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# What a test notes goes into the report of that family alone; real servers on busy machines are slow.
REPORTING = ("-o", "junit_family=xunit1", "--timeout=1200", "--junitxml={place}/report.xml")
SUITE = (
    sys.executable,
    "-m",
    "pytest",
    "tests/contract/test_engine_driver.py",
    "tests/contract/test_engine_counters.py",
)
SHIM = {"CALLSHEET_CONFORMANCE_SHIM": "1", "PYTHONPATH": str(RECIPES / "torchvision_shim")}
SGLANG = (
    "-m sglang.launch_server --model-path {model} --host 127.0.0.1 --port {port} --device cpu "
    "--dtype float32 --attention-backend torch_native --sampling-backend pytorch --grammar-backend none "
    "--disable-overlap-schedule --disable-cuda-graph --mem-fraction-static 0.2 --max-total-tokens 16384 "
    "--max-running-requests 16 --context-length 2048 --skip-server-warmup --enable-metrics"
)
# One place more than half of the load's trajectories, as no attempt takes the canary's.
SGLANG_LOAD = f"{SGLANG} --max-running-requests 33 --max-total-tokens 65536"
SGLANG_VARIABLES = SHIM | {
    "SGLANG_USE_CPU_ENGINE": "1",
    "PYTHONPATH": f"{RECIPES / 'torchvision_shim'}:{RECIPES / 'sglang_kernel'}",
}
VLLM = (
    "-m vllm.entrypoints.openai.api_server --model {model} --host 127.0.0.1 --port {port} --dtype float32 "
    "--max-model-len 8192 --max-num-seqs 16 --enable-scale-out --enable-prompt-tokens-details --enforce-eager"
)
VLLM_VARIABLES = SHIM | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run.

    Attributes:
        steps: What pip installs into an environment of its own, a call for each.
        unwanted: What is taken out of that environment again.
        python: The version of the environment's interpreter; empty for that of this program.
        start: Starts what the command needs; gets the run's directory and gives variables.
        command: The command; {python} is the environment's interpreter, and {place} the run's directory.
        variables: More variables of the command; an empty one is taken out.
        note: Called at the end with the run's directory.
    """

    command: Sequence[str]
    steps: Sequence[Sequence[str]] = ()
    unwanted: Sequence[str] = ()
    python: str = ""
    start: Callable[[Path], AbstractContextManager[Mapping[str, str]]] = lambda place: nullcontext({})
    variables: Mapping[str, str] = field(default_factory=dict)
    note: Callable[[Path], None] = lambda place: None


def interpreter(version: str) -> str | None:
    """Returns the path of an interpreter of a version, of the system's or of pyenv's; None if there is none."""
    if found := shutil.which(f"python{version}"):
        asked = subprocess.run([found, "--version"], check=False, capture_output=True)
        if asked.returncode == 0:  # pyenv's own answers for versions that are installed and not chosen fail
            return found
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return next((str(each) for each in sorted(root.glob(f"versions/{version}.*/bin/python"))), None)


def environment(run: Run, place: Path, python: str) -> str:
    """Installs what a run needs, unless it is there; returns the interpreter of its environment."""
    if not run.steps:
        return sys.executable
    own, done = place / "venv" / "bin" / "python", place / "callsheet-set-up"
    wanted = "\n".join(" ".join(step) for step in run.steps)
    if "--editable" in wanted:
        wanted += "".join((ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "requirements.lock"))
    if not done.is_file() or done.read_text(encoding="utf-8") != wanted:
        print(f"Setting up {place}: some minutes, and gigabytes of trainers and engines.", flush=True)
        subprocess.run([python, "-m", "venv", place / "venv"], check=True)
        for step in run.steps:
            install("--quiet", *step, into=own)
        if run.unwanted:
            subprocess.run([own, "-m", "pip", "uninstall", "--quiet", "--yes", *run.unwanted], check=True)
        done.write_text(wanted, encoding="utf-8")
    return str(own)


def perform(run: Run, place: Path) -> str:
    """Does a run; returns what came of it: "ok", or a sentence."""
    python = interpreter(run.python) if run.python else sys.executable
    if python is None:
        return f"there is no Python {run.python} on this machine"
    place.mkdir(parents=True, exist_ok=True)
    own = environment(run, place, python)
    with run.start(place) as started:
        command = [part.format(python=own, place=place) for part in run.command]
        given = {**os.environ, **started, **run.variables}
        variables = {name: value for name, value in given.items() if value}
        code = subprocess.run(command, cwd=ROOT, env=variables, timeout=RUN_TIMEOUT_S, check=False).returncode
    run.note(place)
    return "ok" if code == 0 else f"FAILED with exit code {code}"


@contextmanager
def running(command: Sequence[str], log: Path, url: str, **variables: str) -> Iterator[str]:
    """Runs a server for the time of a block, once it answers; gives what it printed first if there is no URL."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdout=file if url else subprocess.PIPE,
            stderr=file,
            env=os.environ | variables,
            cwd=log.parent,
            start_new_session=True,
        )
    try:
        if url:
            wait_ready(url, process)
        said = "" if process.stdout is None else process.stdout.readline().decode()
        if not url and not said:
            raise SystemExit(f"{command[0]} ended; its log is {log}.")
        yield said
    finally:
        stop(process)


def wait_ready(url: str, process: subprocess.Popen[bytes] | None = None) -> None:
    """Waits until a server takes requests; its process must not end meanwhile."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline and (process is None or process.poll() is None):
        try:
            with opener.open(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise SystemExit(f"{url} did not answer within {READY_TIMEOUT_S} s, or its server ended; its log is below {BUILD}.")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a server and all its processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_TIMEOUT_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


@contextmanager
def stack(place: Path, *options: str, **variables: str) -> Iterator[str]:
    """Runs `callsheet up` with a new journal; gives the scheduler's address."""
    shutil.rmtree(place / "data", ignore_errors=True)
    command = [CALLSHEET, "up", "--json", "--data-dir", str(place / "data"), "--listen", "127.0.0.1:0", *options]
    with running(command, place / "up.log", "", **variables) as said:
        yield json.loads(said)["address"]


def agent_run(name: str) -> Run:
    """Returns the run of an agent: it is given a task, a base URL and a key, and nothing else of Callsheet."""
    agent = AGENTS[name]

    @contextmanager
    def start(place: Path) -> Iterator[Mapping[str, str]]:
        agent.install(place)
        script, gateway = place / "script.json", f"127.0.0.1:{free_port()}"
        script.write_text(json.dumps({"replies": [{"text": reply} for reply in agent.replies]}), encoding="utf-8")
        engine = ("--managers", "inference", "--engine", "scripted", "--script", str(script), "--gateway", gateway)
        with stack(place, *engine) as address:
            wait_ready(f"http://{gateway}/health")
            yield {"CALLSHEET_TARGET": address, "CALLSHEET_GATEWAY": f"http://{gateway}"}

    command = (sys.executable, "-m", "scripts.programs.agent_run", name, "{place}")
    return Run(steps=agent.steps, start=start, command=command)


@contextmanager
def facade(place: Path) -> Iterator[Mapping[str, str]]:
    """Runs a scheduler, a sandbox manager and a facade of E2B; its sandboxes see what E2B's template for code has."""
    stage, listen = place.parent / "stage", f"127.0.0.1:{free_port()}"
    if not (stage / "PIL").exists():
        install("--quiet", "--target", str(stage), "numpy", "pillow")
    with stack(place, "--managers", "sandbox", CALLSHEET_STAGE=str(stage)) as address:
        command = [CALLSHEET, "facade", "e2b", "--scheduler", address, "--listen", listen]
        url = f"http://{listen}"
        with running(command, place / "facade.log", f"{url}/", CALLSHEET_FACADE_TOKEN=KEY):
            yield {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": KEY, "NO_PROXY": "127.0.0.1"}


def e2b_run(package: str, program: str) -> Run:
    """Returns the run of E2B's client, or of a program that uses it, through its steps."""
    return Run(steps=((package,),), start=facade, command=("{python}", "-m", f"scripts.programs.{program}"))


def trainer_run(extra: str, package: str, *besides: str, first: Sequence[str] = (TORCH,)) -> Run:
    """Returns the run of a trainer's tests, in the environment of a version of it.

    Args:
        extra: The extra of Callsheet with the trainer's adapter.
        package: The trainer and its version.
        besides: Packages that a use of it needs and it does not name.
        first: What is installed before it.
    """
    steps = [
        [*first],
        [package, *besides, "pytest>=8.3", "pytest-timeout>=2.3"],
        # The extra's own bound is looked at here: a version that it does not take is an error.
        [package, "--editable", f"{ROOT}[{extra}]"],
    ]
    tests = sorted(str(path) for path in TRAINER_TESTS.glob(f"test_{extra}_*.py"))
    return Run(
        steps=[step for step in steps if step],
        command=("{python}", "-m", "pytest", "-c", str(TRAINER_TESTS / "pytest.ini"), *tests),
        # The stack is of another environment than the trainer, as in use.
        variables=QUIET | {"CALLSHEET_COMMAND": CALLSHEET, "PYTHONPATH": str(ROOT)},
    )


def python_run(version: str) -> Run:
    """Returns the run of tests on a version of Python: unit tests that need no torch, and some that start processes."""
    extras = "scheduler,sandbox,gateway,dashboard,facade,harbor,docker,compose,telemetry"
    tests = "anthropic check-jsonschema hypothesis openai pytest pytest-timeout pytest-xdist sniffio swe-rex trustme"
    wanted = ["--constraint", str(ROOT / "requirements.lock"), "--editable", f"{ROOT}[{extras}]", *tests.split()]
    # A skip is no failure here: the tests of `make test` have no skips.
    variables = {"CI": "", "PYTHONPATH": str(ROOT)}
    command = ("{python}", "-m", "scripts.programs.importable_tests")
    return Run(python=version, steps=(wanted,), command=command, variables=variables)


def engine_steps(name: str) -> tuple[list[list[str]], list[str]]:
    """Reads the recipe of an engine: what pip installs, step by step, and what is taken out again.

    torch comes first, so that nothing brings another build of it.
    """
    text, _, unwanted = (RECIPES / f"{name}.txt").read_text(encoding="utf-8").partition("# uninstall\n")
    wanted, _, alone = text.partition("# --no-deps\n")
    first, *others = _packages(wanted)
    steps = [[first], others, ["--no-deps", *_packages(alone)]]
    return [step for step in steps if step[-1:] not in ([], ["--no-deps"])], _packages(unwanted)


def _packages(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def engine_run(name: str, package: str, arguments: str, ready: str, **variables: str) -> Run:
    """Returns the run of the contract suite of drivers against a real server with a small model of random weights.

    Args:
        name: The engine.
        package: The package whose release the table shows.
        arguments: The server's command line behind the interpreter.
        ready: The path that answers once it takes requests.
        variables: The server's own.
    """
    steps, unwanted = engine_steps(name)

    @contextmanager
    def start(place: Path) -> Iterator[Mapping[str, str]]:
        from tests.support.real_engines import conformance_model

        model, port = conformance_model(place / "model", 0), free_port()
        command = [str(place / "venv/bin/python"), *arguments.format(model=model, port=port).split()]
        url = f"http://127.0.0.1:{port}"
        with running(command, place / "server.log", url + ready, **OFFLINE, **variables):
            yield {f"CALLSHEET_CONFORMANCE_{name.upper()}_URL": url}

    return Run(
        steps=steps,
        unwanted=unwanted,
        start=start,
        command=(*SUITE, "-k", f"{name} and not contract-{name}", *REPORTING),
        note=lambda place: note_engines(place, package),
    )


def load_run(name: str, arguments: str, **variables: str) -> Run:
    """Returns the run in which two servers of an engine take new weights under load, and one is killed in mid-update.

    Args:
        name: The engine, whose own run has installed it.
        arguments: The servers' command line behind the interpreter; the last one of an option counts.
        variables: The servers' own.
    """

    @contextmanager
    def start(place: Path) -> Iterator[Mapping[str, str]]:
        from tests.support.real_engines import conformance_model

        model = conformance_model(place / "model", 0)
        own = OFFLINE | ONE_THREAD | variables
        command = ["env", "-C", str(place), *(f"{key}={value}" for key, value in own.items())]
        command += [str(place.parent / name / "venv/bin/python"), *arguments.replace("{model}", str(model)).split()]
        yield {"CALLSHEET_WEIGHTS_ENGINE": name, "CALLSHEET_WEIGHTS_SERVER": shlex.join(command)}

    command = (sys.executable, "-m", "pytest", "-v", "tests/soak/test_weights.py", "-o", "timeout=3600")
    return Run(start=start, command=command, variables=ONE_THREAD)


def note_engines(place: Path, package: str = "") -> None:
    """Notes the results of the contract suite in docs/lab, with the release of the package that was installed."""
    release = metadata.distributions(path=[str(path) for path in (place / "venv").glob("lib/python*/site-packages")])
    against = next((f"{package} {each.version}" for each in release if each.name == package), "")
    origin = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "against": against}
    found = {driver: origin | {"cases": cases} for driver, cases in results_in(place / "report.xml").items()}
    note_results(ENGINES_PAGE, found, rows_of)


def results_in(report: Path) -> dict[str, dict[str, str]]:
    """Returns the results by driver and case in a report of pytest."""
    results: dict[str, dict[str, str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name, _, parameters = case.get("name", "").removesuffix("]").partition("[")
        driver, *rest = parameters.split("-UpdateMode.")[0], *parameters.split(".")[1:]
        failed = any(child.tag in ("failure", "error") for child in case)
        lacks = any(noted.get("name") == "lacks" for noted in case.iter("property"))
        result = "failed" if failed else "lacks" if lacks else "ok"
        title = name.removeprefix("test_").replace("_", " ") + "".join(f": {part.lower()}" for part in rest)
        results.setdefault(driver, {})[title] = result
    return results


def rows_of(known: Results) -> list[list[str]]:
    """Returns the table of drivers by cases."""
    drivers = sorted(known)
    cases = {driver: dict(known[driver]["cases"]) for driver in drivers}  # type: ignore[call-overload]
    titles = sorted({title for told in cases.values() for title in told})
    return [
        ["case", *drivers],
        ["*ran against*", *(str(known[driver]["against"] or "itself") for driver in drivers)],
        ["*date*", *(str(known[driver]["date"]) for driver in drivers)],
        *([title, *(MARKS.get(cases[driver].get(title, ""), "not run") for driver in drivers)] for title in titles),
    ]


def table() -> Mapping[str, Mapping[str, Run]]:
    """Returns all runs, by kind and name."""
    return {
        "agents": {name: agent_run(name) for name in AGENTS},
        # E2B's own client: the newest, the one that ROCK's server is made for, the oldest. Then programs that use it.
        "e2b": {
            **{version: e2b_run(f"e2b=={version}", "e2b_client") for version in ("2.63.0", "2.34.0", "2.25.1")},
            "smolagents": e2b_run("smolagents[e2b]==1.26.0", "e2b_smolagents"),
            "openai-agents": e2b_run("openai-agents[e2b]==0.24.0", "e2b_openai_agents"),
        },
        # The newest version that the tests ran with, and the oldest that the extra takes.
        "trainers": {
            # AsyncGRPOTrainer imports the first two; adapters are of the last one.
            **{
                f"trl-{each}": trainer_run("trl", f"trl=={each}", *["aiohttp", "requests", "peft"])
                for each in ("1.16.0", "1.14.0")
            },
            # 0.3 has the interface of old, which 0.4 has dropped.
            "verifiers-0.4.0": trainer_run("verifiers", "verifiers==0.4.0", "psutil", first=()),
            # No trainer, but its adapter is of the same kind. inspect-ai's own check of sandboxes checks it.
            "inspect_ai-0.3.285": trainer_run("inspect_ai", "inspect-ai==0.3.285", first=()),
            # 0.9.0 has another bookkeeping of tokens in its agent loops.
            "verl-0.9.1": trainer_run("verl", "verl==0.9.1", "psutil", "TransferQueue>=0.1.10"),
        },
        "conformance": {
            "offline": Run(command=(*SUITE, "-k", "torch or transformers or contract", *REPORTING), note=note_engines),
            "sglang": engine_run("sglang", "sglang", SGLANG, "/ready", **SGLANG_VARIABLES),
            "sglang-load": load_run("sglang", SGLANG_LOAD, **SGLANG_VARIABLES),
            "vllm": engine_run("vllm", "vllm-cpu", VLLM, "/health", **VLLM_VARIABLES),
        },
        "pythons": {version: python_run(version) for version in ("3.12", "3.13")},
    }


def main() -> int:
    """Does the runs that are named, or all of a kind; returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    kinds = table()
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    runs = kinds[given.kind]
    chosen = [each for each in runs if not given.names or each in given.names]
    chosen += [each for each in runs if each.rpartition("-")[0] in given.names and each not in chosen]
    if missing := [
        each for each in given.names if not any(name == each or name.startswith(f"{each}-") for name in chosen)
    ]:
        parser.error(f"{missing[0]!r} must be one of {', '.join(runs)}")
    told: list[str] = []
    for name in chosen:
        began = time.monotonic()
        told.append(f"{given.kind} {name}: {perform(runs[name], BUILD / given.kind / name)}")
        print(f"{told[-1]} ({(time.monotonic() - began) / 60:.1f} min)", flush=True)
    print(f"callsheet {metadata.version('callsheet')}, Python {sys.version.split()[0]}", *told, sep="\n")
    return int(any("FAILED" in each for each in told))


if __name__ == "__main__":
    sys.exit(main())
