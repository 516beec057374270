"""Settings that choose the ended run that a dashboard shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from callsheet.options.declaration import Setting
from callsheet.scheduler.core.words.costs import read_prices
from callsheet.scheduler.service.settings import Prices


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRunSettings:
    """The files and the database of an ended run, and its prices; without a data directory there is no such run."""

    data_dir: Annotated[
        Path | None, Setting("Show the run that left this data directory, without a scheduler.", default_text="none")
    ] = None
    database_url_file: Annotated[
        Path | None,
        Setting("File with the URL of the PostgreSQL database that has the run's journal.", default_text="none"),
    ] = None
    prices: Prices = ()

    def __post_init__(self) -> None:
        """Raises ValueError naming field, value and rule."""
        read_prices(self.prices)
        if self.data_dir is None and self.database_url_file is not None:
            raise ValueError("database_url_file: goes with data_dir, where the run's payloads are")
