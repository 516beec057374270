"""Questions to predictors, their answers, and the runs that they learn from.

A planning round makes thousands of these values. So they are named tuples: a frozen dataclass takes three times as
long.
"""

from __future__ import annotations

from typing import NamedTuple

from callsheet.scheduler.core.words.model import ActionKind


class PredictionKey(NamedTuple):
    """Facts about an action that are known before it runs.

    Attributes:
        job: Its job.
        kind: Its kind.
        label: Class of the command, model or API; may be empty.
        task: The prompt it belongs to, which siblings of a group share; empty if there is none.
    """

    job: str
    kind: ActionKind
    label: str
    task: str


class Prediction(NamedTuple):
    """Expected needs of an action at its fewest units.

    Attributes:
        duration_s: Mean execution time, bounded by its timeout.
        log_mean: Mean of the logarithm of execution seconds, without a timeout.
        log_sd: Standard deviation of the logarithm of execution seconds.
        use: CPU cores it uses on average in the foreground; below one where it waits for disks and sockets.
        peak_memory_mb: Memory that it exceeds with a small, set probability.
        amdahl_fraction: Share of the work that more units divide among them, in [0, 1].
        observations: Runs of this very key that the prediction rests on, old ones counted less.
        known: Whether a run of its label ended, or its client gave a hint. Otherwise it is a guess by the kind.
    """

    duration_s: float
    log_mean: float
    log_sd: float
    use: float
    peak_memory_mb: float
    amdahl_fraction: float
    observations: float
    known: bool = True


class ObservedRun(NamedTuple):
    """Measurements of a run of an action.

    Attributes:
        key: What was known ahead.
        execution_s: The execution clock: granted time only.
        units: Units of the elastic resource it ran with, in multiples of its fewest.
        cpu_s: CPU seconds it used.
        peak_memory_mb: Its peak; 0 if nobody measured it.
        failed: It was cut off by a failure that is not its own.
        timed_out: It was cut off by its timeout.
        hint_s: Seconds the client had expected at the fewest units; 0 if it said nothing.
        amdahl_hint: Parallel fraction of the demand's curve.
    """

    key: PredictionKey
    execution_s: float
    units: float = 1.0
    cpu_s: float = 0.0
    peak_memory_mb: float = 0.0
    failed: bool = False
    timed_out: bool = False
    hint_s: float = 0.0
    amdahl_hint: float = 1.0

    @property
    def censored(self) -> bool:
        """True if it would have taken longer than it did."""
        return self.failed or self.timed_out
