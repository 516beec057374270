"""Runs all policies on the same scenarios, and says which bars are met."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import fmean
from typing import NamedTuple

from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.simulator.kv.families import OURS, RIVALS, VARIANTS
from callsheet.benchmarks.simulator.kv.measured import KvRun
from callsheet.benchmarks.simulator.kv.report import KvPoint, KvReport
from callsheet.benchmarks.simulator.kv.settings import KvSettings
from callsheet.benchmarks.simulator.kv.shapes import KvScenario, draw
from callsheet.benchmarks.simulator.kv.world import KvWorld
from callsheet.benchmarks.simulator.worker_pool import map_in_processes


class _Place(NamedTuple):
    shape: str
    demand: float
    prefill_scale: float


class _Asked(NamedTuple):
    place: _Place
    seed: int
    engines: int
    horizon_s: float


class _Answer(NamedTuple):
    runs: Mapping[str, KvRun]
    live: int
    bound: float


def run_kv_comparison(settings: KvSettings, progress: Progress = lambda _: None) -> KvReport:
    """Runs every variant of every policy at every point and seed."""
    places = list(_places(settings))
    asked = [_Asked(place, seed, settings.engines, settings.horizon_s) for place in places for seed in settings.seeds]
    answers = map_in_processes(_run, asked, settings.processes, partial(_tell, progress))
    by_place: dict[_Place, list[_Answer]] = {place: [] for place in places}
    for each, answer in zip(asked, answers, strict=True):
        by_place[each.place].append(answer)
    return KvReport(settings, tuple(_point(place, found) for place, found in by_place.items()))


def _places(settings: KvSettings) -> list[_Place]:
    usual = [_Place(shape, demand, 1.0) for shape, demand in product(settings.shapes, settings.demands)]
    scaled = [
        _Place(settings.shapes[0], max(settings.demands), scale) for scale in settings.prefill_scales if scale != 1.0
    ]
    return usual + scaled


def _tell(progress: Progress, asked: _Asked, answer: _Answer) -> None:
    ours = max(run.turns_per_hour for name, run in answer.runs.items() if name.startswith(OURS))
    place = asked.place
    progress(f"{place.shape}, demand {place.demand:g}, seed {asked.seed}: {OURS} {ours:,.0f} turns/h")


def _run(asked: _Asked) -> _Answer:
    shape, demand, prefill_scale = asked.place
    scenario = draw(shape, demand, asked.engines, asked.seed, horizon_s=asked.horizon_s, prefill_scale=prefill_scale)
    runs = {}
    for variant in VARIANTS:
        engine = replace(scenario.engine, longest_prefix_first=variant.longest_prefix_first)
        make = variant.make
        runs[f"{variant.family}: {variant.name}"] = KvWorld(replace(scenario, engine=engine), make).run()
    return _Answer(runs, len(scenario.first), bound_of(scenario))


def bound_of(scenario: KvScenario) -> float:
    """Turns an hour that no policy exceeds for long: nothing is computed twice, and no KV ever waits for a tool call.

    Engines then decode as many sequences together as contexts fit, those counted more that write more; what a turn adds
    to its context is prefilled once.
    """
    engine = scenario.engine
    turns = [turn.generation for rollout in scenario.later for turn in rollout.turns]
    outputs = fmean(each.output_tokens for each in turns)
    context = fmean(each.output_tokens * each.prompt_tokens for each in turns) / outputs
    new = fmean(each.prompt_tokens - each.known_tokens for each in turns)
    batch = min(engine.kv_tokens / context, len(scenario.first) / scenario.engines, engine.max_batch)
    turn_s = new / engine.prefill_tokens_per_s + outputs * (engine.step_s / batch + engine.step_per_sequence_s)
    return 3600.0 * scenario.engines / turn_s


def _point(place: _Place, answers: list[_Answer]) -> KvPoint:
    """Means over the seeds; of each family the setting with the most turns an hour."""
    usual = {variant.family: f"{variant.family}: {variant.name}" for variant in VARIANTS if variant.usual}
    best = {
        family: max(
            (name for name in answers[0].runs if name.startswith(f"{family}: ")),
            key=lambda name: fmean(answer.runs[name].turns_per_hour for answer in answers),
        )
        for family in (OURS, *RIVALS)
    }

    def mean_of(names: Mapping[str, str]) -> dict[str, KvRun]:
        return {
            family: KvRun(*(fmean(values) for values in zip(*(answer.runs[name] for answer in answers), strict=True)))
            for family, name in names.items()
        }

    def ratios(names: Mapping[str, str], figure: Callable[[KvRun], float]) -> dict[str, tuple[float, ...]]:
        return {
            rival: tuple(
                figure(answer.runs[best[OURS]]) / max(figure(answer.runs[names[rival]]), 1e-9) for answer in answers
            )
            for rival in RIVALS
        }

    return KvPoint(
        shape=place.shape,
        demand=place.demand,
        prefill_scale=place.prefill_scale,
        live=answers[0].live,
        bound_turns_per_hour=fmean(answer.bound for answer in answers),
        best={family: name.partition(": ")[2] for family, name in best.items()},
        runs=mean_of(best),
        ratios=ratios(best, lambda run: run.turns_per_hour),
        ratios_of_trajectories=ratios(best, lambda run: run.trajectories_per_hour),
        ratios_to_usual=ratios(usual, lambda run: run.turns_per_hour),
    )
