"""Runs the training example: three seeds by GRPO and one run by AsyncGRPO, with bars.

    scripts/train_example.py                   both
    scripts/train_example.py --only seeds      one part of it

The trainer is TRL in the environment that `make trainers` makes; the stack is of the environment that this script
runs in. Figures and models are written below build/train-example. Exit code 1 if a figure is below its bar.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scripts import others

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for what lies beside it
ROOT: Final = others.ROOT
TRL: Final = "trl-1.16.0"
PLACE: Final = ROOT / "build" / "train-example"
LEAST_RISE: Final = 0.3
MOST_SECONDS: Final = 480.0
MOST_BEHIND: Final = 4.0
"""Versions, for what AsyncGRPO takes."""
WORK: Final = ("--work-s", "2", "--limit-s", "15")


def train(python: str, backend: str, out: Path, *options: str) -> dict[str, Any]:
    """Runs the training program; returns its figures."""
    environment = {**os.environ, **others.QUIET, "PYTHONPATH": str(ROOT)}
    command = [python, "-m", "examples.training.train", backend, "--out", str(out), *options]
    began = time.monotonic()
    with out.with_suffix(".log").open("wb") as log:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{backend} ended with exit code {done.returncode}; see {log.name}")
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    print(f"{out.stem}: {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.0f}", flush=True)
    return found


def rise(run: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the mean reward of the first and of the last tenth of the steps."""
    rewards = [step["reward"] for step in run["steps"]]
    tenth = max(1, len(rewards) // 10)
    return sum(rewards[:tenth]) / tenth, sum(rewards[-tenth:]) / tenth


def run_seeds(python: str, model: Path, address: str, seeds: Sequence[int], steps: int) -> list[dict[str, Any]]:
    """Trains once with each seed."""
    shared = ("--model", str(model), "--address", address, "--steps", str(steps))
    return [train(python, "callsheet", PLACE / f"seed-{seed}.json", *shared, "--seed", str(seed)) for seed in seeds]


def run_async(python: str, model: Path, address: str, steps: int) -> list[dict[str, Any]]:
    """Trains once by AsyncGRPO, where some environments are slow."""
    options = ("--model", str(model), "--address", address, "--steps", str(steps), *WORK, "--slow", "0.1")
    return [train(python, "async", PLACE / "async.json", *options)]


def judge(seeds: Sequence[Mapping[str, Any]], asynchronous: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Returns each figure with its bar, and whether that is met."""
    found: list[dict[str, Any]] = []
    for run in asynchronous:
        behind = max(float(each) for each in run["staleness"])
        sizes, (first, last) = run["batch_trajectories"], rise(run)
        seen = {"staleness": run["staleness"], "sizes": [min(sizes), max(sizes)], "first": first, "last": last}
        figure = {"figure": "async: versions behind, at most", "value": behind, "bar": MOST_BEHIND}
        found.append({**figure, **seen, "seconds": run["seconds"], "met": behind <= MOST_BEHIND})
    for run in seeds:
        first, last = rise(run)
        name = f"seed {run['seed']}"
        rose = {"figure": f"{name}: rise of the reward", "value": last - first, "bar": LEAST_RISE}
        found.append({**rose, "first": first, "last": last, "met": last - first >= LEAST_RISE})
        took = {"figure": f"{name}: seconds", "value": run["seconds"], "bar": MOST_SECONDS}
        found.append({**took, "met": run["seconds"] <= MOST_SECONDS})
    return found


def main() -> int:
    """Runs what is asked for; returns 1 if a figure is below its bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["seeds", "async"], help="one part of it")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=80)
    given = parser.parse_args()
    python = others.environment(others.table()["trainers"][TRL], others.BUILD / "trainers" / TRL, sys.executable)
    PLACE.mkdir(parents=True, exist_ok=True)
    model = PLACE / "model"
    making = f"from pathlib import Path; from examples.training.small_model import save_small_model as save; \
save(Path({str(model)!r}), 0)"
    subprocess.run(
        [python, "-c", making], cwd=ROOT, env={**os.environ, **others.QUIET, "PYTHONPATH": str(ROOT)}, check=True
    )
    load_before = os.getloadavg()
    managers = ("--managers", "sandbox,inference", "--model", str(model), "--engine-threads", "1")
    with others.stack(PLACE, *managers, "--gateway", "none", "--isolation", "none", "--drain-s", "1") as address:
        parts = {given.only or "seeds", given.only or "async"}
        seeds = run_seeds(python, model, address, given.seeds, given.steps) if "seeds" in parts else []
        asynchronous = run_async(python, model, address, given.steps) if "async" in parts else []
    figures = judge(seeds, asynchronous)
    told = {"trl": TRL, "cores": os.cpu_count(), "load_average": load_before, "figures": figures}
    (PLACE / "figures.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(told, indent=1))
    return int(not all(figure["met"] for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
