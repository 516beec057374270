"""Options of `callsheet bench sim`: what is simulated, on which machines, and what becomes of the figures."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class SimMode(Enum):
    """Whether finished trajectories are replaced."""

    ONESHOT = "oneshot"
    SUSTAINED = "sustained"


Workload = Annotated[
    str, typer.Option(help="coding, deepsearch, math, games, mopd or mixed; names the machines of a trace.")
]
Mode = Annotated[SimMode, typer.Option(help="One step of N trajectories, or N live ones, replaced as they end.")]
Trajectories = Annotated[int | None, typer.Option(min=1, show_default="the workload's", help="N.")]
Cores = Annotated[int | None, typer.Option(min=1, show_default="the workload's", help="Cores in all.")]
Nodes = Annotated[
    int | None, typer.Option(min=1, show_default="as few as will do", help="CPU nodes that the cores are on.")
]
Gpus = Annotated[
    int | None, typer.Option(min=1, show_default="the workload's", help="GPUs of services, or of engines.")
]
FirstSeed = Annotated[int, typer.Option(min=0, help="The first seed.")]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, counting up; every policy meets all.")]
GenerationScale = Annotated[
    float, typer.Option("--generation-scale", min=0.01, help="How many times slower the policy model is.")
]
Rewards = Annotated[
    str | None, typer.Option(show_default="the usual one", help='A mix of its rewards; "none" for none.')
]
Trace = Annotated[
    Path | None, typer.Option(exists=True, dir_okay=False, help="Trajectories from a trace file, resampled.")
]
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
