"""Options of processes that `callsheet.deploy` runs, and what is wrong with them."""

from __future__ import annotations

from typing import Annotated

from callsheet.options.declaration import Setting


class WrongOptionError(Exception):
    """An option is wrong; the message names it and its rule."""

    exit_code = 2
    """Exit code of a process that got a wrong option."""


Cpus = Annotated[int | None, Setting("Cores to share.", variable="CALLSHEET_CPUS", default_text="all", least=1)]
MemoryMib = Annotated[
    int | None,
    Setting(
        "Memory to share in MiB.",
        variable="CALLSHEET_MEMORY_MIB",
        default_text="the machine's, less a margin",
        least=1,
    ),
]
TlsCa = Annotated[
    str | None,
    Setting(
        "Authorities of the scheduler's certificate, as PEM; system for this machine's.",
        variable="CALLSHEET_TLS_CA",
        default_text="no TLS",
    ),
]
