"""A calibration as tables for people."""

from __future__ import annotations

from callsheet.benchmarks.measuring.tables import new_table
from callsheet.benchmarks.simulator.calibration.table import (
    HIT_FACTOR,
    CalibrationTable,
    Experiment,
    FittedParameter,
    Row,
)
from rich.console import Group, RenderableType
from rich.table import Table


def render(table: CalibrationTable) -> RenderableType:
    """A table for each experiment, and how many figures were predicted well."""
    parts: list[RenderableType] = []
    for experiment in table.experiments:
        parts += [_figures(experiment), _notes(experiment), ""]
    parts.append(
        f"{table.hits} of {table.predicted} predicted figures are within a factor of {HIT_FACTOR} of the published ones"
    )
    return Group(*parts)


def _figures(experiment: Experiment) -> Table:
    table = new_table(experiment.name, "figure", ">published", ">simulated", "", "remark")
    for row in experiment.rows:
        table.add_row(row.figure, _published(row), _number(row.simulated), _verdict(row), row.remark)
    return table


def _notes(experiment: Experiment) -> str:
    fitted = "; ".join(_parameter(parameter) for parameter in experiment.fitted) or "nothing"
    return f"Published by: {experiment.source}\nFitted: {fitted}\nAssumed: {experiment.assumptions}"


def _parameter(parameter: FittedParameter) -> str:
    return f"{parameter.name} = {_number(parameter.value)} {parameter.unit} to the {parameter.fitted_to}".replace(
        "  ", " "
    )


def _published(row: Row) -> str:
    return _number(row.low) if row.low == row.high else f"{_number(row.low)} to {_number(row.high)}"


def _verdict(row: Row) -> str:
    if row.fitted:
        return "fitted"
    return "hit" if row.hit else "miss"


def _number(value: float) -> str:
    return f"{value:.3g}"
