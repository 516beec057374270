"""What a calibration finds, and how it fits a parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from callsheet.benchmarks.runner import BenchmarkReport, new_table
from rich.console import RenderableType

# A prediction within this factor of the published figure counts as a hit.
HIT_FACTOR = 1.25


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes:
        figure: What it is, with its unit.
        low: Published; the lower end where a range was published.
        high: The upper end; equal to `low` for a single figure.
        simulated: What the simulator says.
        fitted: Whether a parameter was fitted to it; else it was predicted.
        remark: Why it misses, where it does and we know.
    """

    figure: str
    low: float
    high: float
    simulated: float
    fitted: bool = False
    remark: str = ""

    @property
    def hit(self) -> bool:
        """Whether the simulated figure is within `HIT_FACTOR` of what was published."""
        return self.low / HIT_FACTOR <= self.simulated <= self.high * HIT_FACTOR


@dataclass(frozen=True, slots=True)
class FittedParameter:
    """A parameter that was chosen to make one figure come out right."""

    name: str
    value: float
    unit: str
    fitted_to: str

    def __str__(self) -> str:
        return " ".join(f"{self.name} = {self.value:.3g} {self.unit} to the {self.fitted_to}".split())


@dataclass(frozen=True, slots=True)
class Experiment:
    """One published experiment done again.

    Attributes:
        source: Where its figures are from.
        assumptions: What is not published and was not fitted either.
    """

    name: str
    source: str
    assumptions: str
    fitted: tuple[FittedParameter, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class CalibrationTable(BenchmarkReport):
    """All experiments."""

    experiments: tuple[Experiment, ...]

    @property
    def predicted(self) -> int:
        """How many figures were predicted, not fitted."""
        return len(self._predictions())

    @property
    def hits(self) -> int:
        """How many of these are within `HIT_FACTOR`."""
        return sum(row.hit for row in self._predictions())

    def as_json(self) -> dict[str, object]:
        """The whole table."""
        return {
            "hit_factor": HIT_FACTOR,
            "predicted": self.predicted,
            "hits": self.hits,
            "experiments": [_experiment_as_json(experiment) for experiment in self.experiments],
        }

    def tables(self) -> Iterator[RenderableType]:
        """A table for each experiment, and how many figures were predicted well."""
        for each in self.experiments:
            table = new_table(each.name, "figure", ">published", ">simulated", "", "remark")
            for row in each.rows:
                published = f"{row.low:.3g}" if row.low == row.high else f"{row.low:.3g} to {row.high:.3g}"
                verdict = "fitted" if row.fitted else "hit" if row.hit else "miss"
                table.add_row(row.figure, published, f"{row.simulated:.3g}", verdict, row.remark)
            yield table
            fitted = "; ".join(map(str, each.fitted)) or "nothing"
            yield f"Published by: {each.source}\nFitted: {fitted}\nAssumed: {each.assumptions}\n"
        factor = f"within a factor of {HIT_FACTOR} of the published ones"
        yield f"{self.hits} of {self.predicted} predicted figures are {factor}"

    def _predictions(self) -> list[Row]:
        return [row for each in self.experiments for row in each.rows if not row.fitted]


def _experiment_as_json(experiment: Experiment) -> dict[str, object]:
    return {
        "name": experiment.name,
        "source": experiment.source,
        "assumptions": experiment.assumptions,
        "fitted_parameters": [asdict(parameter) for parameter in experiment.fitted],
        "figures": [
            {
                "figure": row.figure,
                "published": row.low if row.low == row.high else [row.low, row.high],
                "simulated": row.simulated,
                "role": "fitted" if row.fitted else "predicted",
                "hit": row.hit,
                "remark": row.remark,
            }
            for row in experiment.rows
        ],
    }


def row(figure: str, published: float | tuple[float, float], simulated: float, remark: str = "") -> Row:
    """A predicted figure; `published` is one figure or a range."""
    low, high = published if isinstance(published, tuple) else (published, published)
    return Row(figure, low, high, simulated, remark=remark)


def fitted_row(figure: str, published: float, simulated: float) -> Row:
    """A figure that a parameter was fitted to."""
    return Row(figure, published, published, simulated, fitted=True)


def bisect(figure: Callable[[float], float], target: float, low: float, high: float, steps: int = 10) -> float:
    """The value in [low, high] at which a monotonous figure is nearest to the target; an end where it never gets there.

    Args:
        figure: The figure at a value of the parameter; rising or falling.
        target: What it should be.
        low: Least value of the parameter.
        high: Greatest one.
        steps: Halvings.
    """
    at_low, at_high = figure(low), figure(high)
    rising = at_high >= at_low
    if not min(at_low, at_high) < target < max(at_low, at_high):
        return low if abs(at_low - target) < abs(at_high - target) else high
    for _ in range(steps):
        middle = (low + high) / 2.0
        if (figure(middle) < target) == rising:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0
