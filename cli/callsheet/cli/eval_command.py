"""`callsheet eval`: a model or an agent on a task set, without a trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer
from callsheet.cli.options import AsJson, options_of
from callsheet.cli.output import CommandError, print_json, print_report, say
from callsheet.cli.questions import connection_options
from callsheet.evaluation.settings import EvaluationSettings

if TYPE_CHECKING:
    from callsheet.evaluation.results import TrialResult

_EXIT_EXCLUDED: Final = 3
# A scheduler or a manager that starts again is waited for.
_PATIENCE_S: Final = 120.0
_CONNECT_S: Final = 5.0
_ZERO: Final = "a score of 0"


@options_of(settings=EvaluationSettings)
def evaluate(
    environment: Annotated[str, typer.Argument(metavar="ENVIRONMENT", help="An installed task set, or MODULE:NAME.")],
    *,
    settings: EvaluationSettings,
    as_json: AsJson = False,
) -> None:
    """Score a model, or an agent, on the tasks of an environment.

    Each task and trial gets exactly one result. If the service loses a trajectory, another one follows, and the loss is
    never a score of 0. The exit code is 0 if each result is a score or a failure of the model. It is 3 if some results
    are failures of the service or of a task, which no mean counts, and 1 if an error ended the evaluation. Run it again
    with the same --results to continue.
    """
    import sys
    from pathlib import Path

    import anyio
    from callsheet.client import Client
    from callsheet.evaluation.render import render
    from callsheet.evaluation.results import summarise
    from callsheet.evaluation.run import Evaluation

    # MODULE:NAME may be a file beside the user, as with `python -m`; last, so that it hides no installed module.
    sys.path.append(str(Path.cwd()))
    try:
        evaluation = Evaluation(environment, settings)
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error

    async def run() -> None:
        options = connection_options(connect_timeout_s=_CONNECT_S, give_up_after_s=_PATIENCE_S)
        async with await Client.connect(settings.scheduler, options) as client:
            with _progress() as told:
                await evaluation.run(client, told, _say_limits)

    anyio.run(run)
    summary = summarise(environment, evaluation.results, settings.pass_at)
    if as_json:
        print_json(summary.as_json())
    else:
        print_report(render(summary))
    if summary.excluded:
        say(f"callsheet: {summary.excluded} of {summary.results} results are no scores", err=True)
        raise typer.Exit(_EXIT_EXCLUDED)


def _say_limits(limits: Mapping[str, float]) -> None:
    say("callsheet: seconds at most: " + ", ".join(f"{name} {limit:g}" for name, limit in limits.items()), err=True)


@contextmanager
def _progress() -> Iterator[Callable[[TrialResult, int, int], None]]:
    """Shows a bar on a terminal; elsewhere a line for each tenth of the results."""
    from callsheet.cli.console import TextConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = TextConsole(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        shown = bar.add_task("trials", total=None)
        known: set[str] = set()

        def told(result: TrialResult, done: int, in_all: int) -> None:
            bar.update(shown, completed=done, total=in_all)
            if not console.is_terminal and (done * 10 // in_all > (done - 1) * 10 // in_all):
                say(f"callsheet: {done} of {in_all} results, the last: {result.task} {result.status}", err=True)
            failure = result.failure
            if failure is not None and failure["reason"] not in known:
                # The first of each sort, since what all trials lack is seen at once.
                known.add(failure["reason"])
                said = f"callsheet: {result.task}: {failure['kind']} {failure['reason']}: {failure['message']}"
                say(said, err=True)
            if result.score == 0 and result.said and _ZERO not in known:
                known.add(_ZERO)
                say(f"callsheet: {result.task}: score 0, and its tests said last:\n{result.said}", err=True)

        yield told
