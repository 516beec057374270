"""Options of managers that hold a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from callsheet.options.declaration import PathRule, Setting

Weights = Annotated[
    Path | None,
    Setting(
        "Directory with config.json and weights.pt.",
        variable="CALLSHEET_WEIGHTS",
        default_text="random weights",
        path=PathRule(exists=True),
    ),
]
Seed = Annotated[int, Setting("Seed of random weights.", least=0)]
LoadAtFirstUse = Annotated[
    bool,
    Setting("Load the model with the first request; until then it takes no memory.", flag="--load-at-first-use"),
]
