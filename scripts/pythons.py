"""Runs what needs no torch on the newer versions of Python that this machine has, and says which ran.

    python scripts/pythons.py [VERSION ...]

Each version has an environment of its own below build/pythons. There run the unit tests that need nothing which is not
installed there, and tests that start `callsheet up`, actions in sandboxes and `callsheet eval` as processes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.set_up import install  # noqa: E402

VERSIONS = ("3.12", "3.13")
EXTRAS = "scheduler,sandbox,gateway,dashboard,facade,harbor,docker,compose,telemetry"
FOR_TESTS = [
    "anthropic",
    "check-jsonschema",
    "hypothesis",
    "openai",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "sniffio",
    "swe-rex",
    "trustme",
]
PROCESSES = (
    "tests/integration/test_private_data.py",
    "tests/integration/test_local_stack.py",
    "tests/integration/test_coding_tasks.py",
    "tests/faults/test_eval_kill.py",
)
# What is heavy, or for development alone, and is not installed there: files that import it are left out.
LEFT_OUT = ("aiohttp", "compose", "ray", "torch")
IMPORT_ALL = f"""
import importlib, pathlib, sys
for path in sorted(pathlib.Path("tests/unit").rglob("test_*.py")):
    try:
        importlib.import_module(".".join(path.with_suffix("").parts))
    except ModuleNotFoundError as error:
        if error.name not in {LEFT_OUT}:
            raise
    else:
        print(path)
"""


def interpreter(version: str) -> str | None:
    """Returns the path of an interpreter of a version, of the system's or of pyenv's; None where there is none."""
    if found := shutil.which(f"python{version}"):
        asked = subprocess.run([found, "--version"], check=False, capture_output=True)
        if asked.returncode == 0:  # pyenv's own answers for versions that are installed and not chosen fail
            return found
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return next((str(each) for each in sorted(root.glob(f"versions/{version}.*/bin/python"))), None)


def run_on(version: str, python: str) -> bool:
    """Sets the environment of a version up and runs its tests there; returns whether they passed."""
    place = ROOT / "build" / "pythons" / version
    own = place / "bin" / "python"
    subprocess.run([python, "-m", "venv", str(place)], check=True)
    wanted = ["--constraint", str(ROOT / "requirements.lock"), "--editable", f"{ROOT}[{EXTRAS}]", *FOR_TESTS]
    install("--quiet", *wanted, into=own)
    # A skip is no failure here: the tests of `make test` have no skips.
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run([own, "-c", IMPORT_ALL], check=True, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    files = [*found.stdout.decode().split(), *PROCESSES]
    command = [str(own), "-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile", "-p", "no:cacheprovider", *files]
    return subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode == 0


def main() -> None:
    """Runs all versions, or those that are named."""
    told: list[str] = []
    failed = False
    for version in sys.argv[1:] or VERSIONS:
        python = interpreter(version)
        passed = python is not None and run_on(version, python)
        failed = failed or (python is not None and not passed)
        verdict = "passed" if passed else "there is none on this machine" if python is None else "FAILED"
        told.append(f"pythons: {version}: {verdict}")
    print(*told, sep="\n")
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
