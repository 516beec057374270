"""What storms of resets found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from callsheet.benchmarks.measuring.statistics import rounded
from callsheet.benchmarks.runner import Bar, BenchmarkReport, Column, figures_table
from rich.table import Table

# Creates a CPU second on several hosts by those on one: they share this machine's cores, so nothing else compares.
LEAST_SHARE = 0.9
_COLUMNS: tuple[Column, ...] = (
    ("images", "images", "d"),
    ("hosts", "hosts", "d"),
    ("p50 s", "p50_s", ".2f"),
    ("p99 s", "p99_s", ".2f"),
    ("all s", "all_s", ".2f"),
    ("failed", "failed", "d"),
    ("creates a CPU s", "creates_per_cpu_s", ".1f"),
)


@dataclass(frozen=True, slots=True)
class StormResult:
    """One storm on a stack of its own, whose images no sandbox had yet.

    Attributes:
        resets: At once, each of a trajectory of its own.
        images: They begin with, in turn.
        hosts: Managers of sandboxes.
        p50_s: Seconds from a reset's submit to its outcome.
        p99_s: The same.
        all_s: Until the last outcome.
        failed: Resets that did not succeed.
        creates_per_cpu_s: Those that did, by the CPU seconds of scheduler, managers and sandboxes.
    """

    resets: int
    images: int
    hosts: int
    p50_s: float
    p99_s: float
    all_s: float
    failed: int
    creates_per_cpu_s: float


@dataclass(frozen=True, slots=True)
class StormReport(BenchmarkReport):
    """Results of all storms."""

    machine: dict[str, Any]
    results: tuple[StormResult, ...]

    @property
    def bars(self) -> Sequence[Bar]:
        """None fails, and several hosts cost next to nothing over one."""
        bars = [Bar("failed resets", float(sum(each.failed for each in self.results)), at_most=0.0)]
        alone = {(each.resets, each.images): each.creates_per_cpu_s for each in self.results if each.hosts == 1}
        for each in self.results:
            if each.hosts > 1 and (each.resets, each.images) in alone:
                share = each.creates_per_cpu_s / alone[each.resets, each.images]
                name = f"{each.resets:,} resets, {each.images} images: creates a CPU second, {each.hosts} hosts by one"
                bars.append(Bar(name, share, at_least=LEAST_SHARE))
        return bars

    def as_json(self) -> dict[str, Any]:
        """The figures."""
        return {"machine": self.machine, "results": [rounded(asdict(each)) for each in self.results]}

    def tables(self) -> Iterator[Table]:
        """One row a storm."""
        yield figures_table("Resets at once", "resets", _COLUMNS, [(f"{each.resets:,}", each) for each in self.results])
