"""What the contract suite of drivers needs to know of an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from callsheet.managers.inference.driver import EngineDriver
from torch import Tensor


@dataclass(kw_only=True)
class Subject:
    """A driver and what a test needs to know of its engine, which starts with the weights of seed 0 as version 0.

    Attributes:
        driver: The driver.
        weights: Returns a directory with the weights of a seed, in the engine's own format; fresh, so that a test may
            damage it.
        other_shape: Returns a directory with usable weights of another model.
        weights_file: The file of such a directory that holds tensors.
        expected: Log-probabilities of an output after a prompt under the weights of a seed, by a plain reference.
        text: The text of new tokens.
        context_length: The most tokens of a sequence.
        most_requests: Live requests after which more are refused as busy; None where the engine has no such bound.
        cached_of_100: Tokens of a prompt of 100 that a second equal request finds cached.
        tolerance: By how much log-probabilities may differ from the reference.
        misfit: What is said of weights of another model.
        knows_intact: Whether the driver can know that weights which could not be used have left the old ones whole.
        endless: New tokens of a request that is still running when a test wants to interfere.
        lengthy: New tokens of a request that is running for a while, and then ends.
        lacking: What was found missing, see `lacks`.
        wakes_whole: Whether the engine has its weights after a sleep; else they are garbage until they are loaded anew.
        tensors: All weights of a seed by name, as a trainer has them; None where the engine takes no tensors.
    """

    driver: EngineDriver
    weights: Callable[[int], Path]
    other_shape: Callable[[], Path]
    weights_file: str
    expected: Callable[[int, tuple[int, ...], tuple[int, ...]], list[float]]
    text: Callable[[Sequence[int]], str]
    context_length: int
    most_requests: int | None
    cached_of_100: int
    tolerance: float
    misfit: str = "not (that|those) of the running model"
    knows_intact: bool = True
    endless: int = 16_000
    lengthy: int = 2000
    wakes_whole: bool = False
    tensors: Callable[[int], dict[str, Tensor]] | None = None
    lacking: list[str] = field(default_factory=list)

    def lacks(self, what: str) -> None:
        """Notes that a test does not apply: its driver says that the engine cannot do what it is about."""
        self.lacking.append(what)


SubjectFactory = Callable[[Path], AbstractAsyncContextManager[Subject]]
"""Starts an engine, given a directory for its files, and ends it at the end of the `with` block."""
