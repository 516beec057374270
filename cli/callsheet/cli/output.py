"""What goes where: results to standard output, progress to standard error. All that commands say passes here.

What others wrote, and that is most of it, gives the user's terminal no orders; files and pipes get the same text, as
they may be shown later. `--json` has every text exactly, with escapes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import typer
from callsheet.deploy.terminal import visible

if TYPE_CHECKING:
    from callsheet.client.words.status import JobStatus

_PIPED_WIDTH = 160
_NAME_WIDTH = 40
_FINISHED = ("succeeded", "failed", "cancelled", "expired")


def say(text: str, *, err: bool = False) -> None:
    """Prints a text and a newline, to standard output or standard error."""
    typer.echo(visible(text), err=err)


def print_json(value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Prints one JSON object, or a list of them, to standard output."""
    say(json.dumps(value, indent=2, sort_keys=False, allow_nan=False))


def print_report(report: Any) -> None:
    """Prints something that rich can render to standard output; wide tables keep their columns in a file or a pipe."""
    from callsheet.cli.console import TextConsole

    console = TextConsole()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    console.print(report)


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Prints a table to standard output; columns whose name ends in " #" hold numbers."""
    from callsheet.cli.console import plain_table

    print_report(plain_table(title, columns, rows, _NAME_WIDTH))


def pairs(values: Mapping[str, object]) -> str:
    """Names with their values, in the order of the names, for a cell of a table."""
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()))


def failures_of(job: JobStatus) -> str:
    """The failures of a job by their kinds, for a cell of a table, and how many actions their sandboxes died under."""
    told = pairs(job.failures)
    if not job.dead_sandboxes:
        return told
    finished = sum(job.actions.get(state, 0) for state in _FINISHED)
    share = f" ({job.dead_sandboxes / finished:.1%})" if finished else ""
    return f"{told}; sandbox died {job.dead_sandboxes}{share}"


@contextmanager
def progress_on_stderr() -> Iterator[Callable[[str], None]]:
    """Shows what is being done, a line each; on a terminal also a spinner beside the latest."""
    from callsheet.cli.console import TextConsole
    from rich.text import Text

    console = TextConsole(stderr=True, highlight=False)
    with console.status("starting") if console.is_terminal else nullcontext() as status:

        def show(text: str) -> None:
            console.print(text, markup=False, soft_wrap=True)
            if status is not None:
                status.update(Text(text))

        yield show
