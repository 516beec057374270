"""What a calibration finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass

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
class CalibrationTable:
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
