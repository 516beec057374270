"""Runs the adapters of trainers with the real trainers, as they are published, against a real scheduler.

    scripts/trainers.py                    all trainers, each in its newest and its oldest supported version
    scripts/trainers.py trl --only newest  one of them

Each version is installed in a virtual environment of its own below build/trainers: torch for CPUs first, then the
trainer, then this checkout with the trainer's extra. The tests of tests/trainers run there. What they talk to is a
stack of the environment that this script runs in. Exit code 1 if a test failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.set_up import install  # noqa: E402

PLACE = ROOT / "build" / "trainers"
TESTS = ROOT / "tests" / "trainers"
TORCH = "torch==2.13.0"
# What the tests themselves need.
COMMON = ("pytest>=8.3", "pytest-timeout>=2.3")
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A trainer whose adapter is kept working.

    Attributes:
        package: The package that is the trainer.
        newest: The newest version that the tests ran with.
        oldest: The oldest version that is supported, as the extra says.
        besides: Packages that a use of it needs and it does not name.
        first: What is installed before it.
        environment: Variables that its tests need.
    """

    package: str
    newest: str
    oldest: str
    besides: Sequence[str] = ()
    first: Sequence[str] = (TORCH,)
    environment: Sequence[tuple[str, str]] = ()

    def versions(self, only: str | None) -> tuple[str, ...]:
        """Returns the versions to run, the newest first and none twice."""
        named = {"newest": self.newest, "oldest": self.oldest}
        return tuple(dict.fromkeys([named[only]] if only else named.values()))


TRAINERS = {
    # AsyncGRPOTrainer imports the first two; adapters are of the last one.
    "trl": Trainer(package="trl", newest="1.16.0", oldest="1.14.0", besides=("aiohttp", "requests", "peft")),
    # 0.3 has the interface of old, which 0.4 has dropped.
    "verifiers": Trainer(package="verifiers", newest="0.4.0", oldest="0.4.0", besides=("psutil",), first=()),
    # No trainer; its adapter is a class of the same kind, and is checked by inspect-ai's own check of sandboxes.
    "inspect_ai": Trainer(package="inspect-ai", newest="0.3.285", oldest="0.3.285", first=()),
    # 0.9.0 has another bookkeeping of tokens in its agent loops.
    "verl": Trainer(package="verl", newest="0.9.1", oldest="0.9.1", besides=("psutil", "TransferQueue>=0.1.10")),
}


def set_up(name: str, trainer: Trainer, version: str) -> Path:
    """Installs a version once; returns the interpreter of its environment."""
    venv = PLACE / f"{name}-{version}"
    python, done = venv / "bin" / "python", venv / "callsheet-set-up"
    steps = [
        [*trainer.first],
        [f"{trainer.package}=={version}", *trainer.besides, *COMMON],
        # The extra's own bound is looked at here: a version that it does not take is an error.
        [f"{trainer.package}=={version}", "--editable", f"{ROOT}[{name}]"],
    ]
    wanted = "\n".join(" ".join(step) for step in steps) + "\n" + (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    if done.is_file() and done.read_text(encoding="utf-8") == wanted:
        return python
    print(f"Setting up {name} {version} in {venv}: a minute or two, and gigabytes.", flush=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    for step in steps:
        if step:
            install("--quiet", *step, into=python)
    done.write_text(wanted, encoding="utf-8")
    return python


def run_tests(name: str, trainer: Trainer, python: Path, arguments: Sequence[str]) -> int:
    """Runs the tests of a trainer in its environment; returns pytest's exit code."""
    environment = {
        **os.environ,
        **QUIET,
        **dict(trainer.environment),
        # The stack is of another environment than the trainer, as where people use both.
        "CALLSHEET_COMMAND": str(Path(sys.executable).parent / "callsheet"),
        "PYTHONPATH": str(ROOT),
    }
    tests = sorted(str(path) for path in TESTS.glob(f"test_{name}_*.py"))
    command = [str(python), "-m", "pytest", "-c", str(TESTS / "pytest.ini"), *tests, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main() -> int:
    """Runs the trainers that are named; returns 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainers", nargs="*", choices=[[], *TRAINERS], default=[])
    parser.add_argument("--only", choices=["newest", "oldest"], help="one version of each")
    parser.add_argument("--pytest-args", default="", help="handed on to pytest, split at spaces")
    given = parser.parse_args()
    told: list[str] = []
    failed = False
    for name in given.trainers or list(TRAINERS):
        trainer = TRAINERS[name]
        for version in trainer.versions(given.only):
            began = time.monotonic()
            python = set_up(name, trainer, version)
            ready = time.monotonic()
            code = run_tests(name, trainer, python, given.pytest_args.split())
            failed = failed or code != 0
            installed, ran = (ready - began) / 60, (time.monotonic() - ready) / 60
            said = "ok" if code == 0 else f"failed with exit code {code}"
            told.append(f"{name} {version}: {said} (set-up {installed:.1f} min, tests {ran:.1f} min)")
    print(f"callsheet {metadata.version('callsheet')}, Python {sys.version.split()[0]}, {TORCH}", *told, sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
