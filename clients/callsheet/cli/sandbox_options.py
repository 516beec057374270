"""Options of where sandboxes begin and how many there may be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Images = Annotated[
    Path | None,
    typer.Option(
        envvar="CALLSHEET_IMAGES",
        exists=True,
        file_okay=False,
        resolve_path=True,
        help="Image store: a directory of root file systems, as directories or archives, that env_reset can name.",
    ),
]
LayerCacheMib = Annotated[
    int,
    typer.Option(
        envvar="CALLSHEET_LAYER_CACHE_MIB",
        min=1,
        help="The most that unpacked images and the files that set-ups left may take on disk, in MiB.",
    ),
]
KeepSetUps = Annotated[
    bool, typer.Option(help="Begin sandboxes with the files that the same set-up left before, instead of repeating it.")
]
SharedCpus = Annotated[
    int | None,
    typer.Option(
        envvar="CALLSHEET_SHARED_CPUS",
        min=1,
        show_default="all",
        help="How many of the cores are shared; leave out those that other managers of the machine need.",
    ),
]
SandboxMemoryMib = Annotated[
    int | None,
    typer.Option(
        envvar="CALLSHEET_SANDBOX_MEMORY_MIB",
        min=1,
        show_default="no limit but what the scheduler books",
        help="The most that all sandboxes may hold together, in MiB; more are refused.",
    ),
]
WarmMemoryMib = Annotated[
    int,
    typer.Option(
        envvar="CALLSHEET_WARM_MEMORY_MIB",
        min=0,
        help="What sandboxes that nobody asked for yet may hold together, in MiB; 0 keeps none ready.",
    ),
]
