"""Options of `callsheet bench sim`: which policies are simulated how often, and what becomes of the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FirstSeed = Annotated[int, typer.Option(min=0, help="The first seed.")]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, counting up; every policy meets all.")]
Policies = Annotated[list[str] | None, typer.Option(show_default="all", help="A policy to run; may be given again.")]
Ablations = Annotated[bool, typer.Option("--ablations", help="Run callsheet without each of its pieces too.")]
EqualAct = Annotated[bool, typer.Option("--equal-act", help="Search for the cores that give a reservation's ACT.")]
Plots = Annotated[
    Path | None, typer.Option(file_okay=False, help="Write an HTML page with plots there; runs their sweeps too.")
]
Check = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Ranges the figures must be in: a file, or the name of one that comes along."),
]
Calibrate = Annotated[
    bool, typer.Option("--calibrate", help="Print the simulator's figures beside published ones, and nothing else.")
]
Processes = Annotated[int | None, typer.Option(min=1, show_default="all cores", help="Simulations at once.")]
