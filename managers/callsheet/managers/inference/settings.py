"""Settings of an inference manager. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from callsheet.managers.models.options import LoadAtFirstUse, Seed, Weights
from callsheet.options.declaration import Option

EngineThreads = Annotated[
    int | None,
    Option(
        "Threads of the inference engine; it keeps as many cores for itself.",
        flag="--engine-threads",
        variable="CALLSHEET_ENGINE_THREADS",
        default_text="a quarter of the cores, at least 1",
        least=1,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceSettings:
    """What to serve, and what every engine is told.

    Attributes:
        policy_version: Version of the weights at the start.
        cores: The cores to pin them to, see `callsheet.managers.inference.cores.reserved_cores`; empty does not pin.
        gpus: GPUs of the node to register as reserved; 0 on a CPU.
    """

    engine: Annotated[str, Option("Driver of the engine.", variable="CALLSHEET_ENGINE")] = "torch"
    engine_options: Annotated[
        tuple[str, ...],
        Option(
            "A setting of that driver's own; repeatable.", flag="--engine-option", metavar="NAME=VALUE", repeatable=True
        ),
    ] = ()
    model: Annotated[str, Option("Name of the hosted service.", variable="CALLSHEET_MODEL")] = "policy"
    weights: Weights = None
    seed: Seed = 0
    policy_version: int = 0
    slots: Annotated[int, Option("The most sequences in the batch.", least=1)] = 64
    threads: EngineThreads = None
    cores: tuple[int, ...] = ()
    gpus: int = 0
    kv_cache_tokens: Annotated[int, Option("Tokens of the KV cache; a multiple of 16.", least=16)] = 32_768
    load_at_first_use: LoadAtFirstUse = False

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model: '' is empty; it must be given")
        for name, least in (("slots", 1), ("threads", 1), ("policy_version", 0), ("gpus", 0), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}: {value} must be at least {least}")

    @property
    def thread_count(self) -> int:
        """Threads of the engine's kernels: one where nobody has chosen."""
        return self.threads or 1


def share_of_cores(cores: int, requested: int | None) -> int:
    """Cores that the inference engine keeps for itself: a quarter, at least one, and never all of them.

    Args:
        cores: Cores of the node.
        requested: The user's wish; None chooses.

    Raises:
        ValueError: The engine would leave no core for actions.
    """
    threads = max(1, cores // 4) if requested is None else requested
    if not 1 <= threads < cores:
        raise ValueError(
            f"engine threads: {threads} of {cores} cores; the engine needs at least one core and must leave at least "
            "one for actions (give more --cpus, fewer --engine-threads, or leave inference out with --managers)"
        )
    return threads
