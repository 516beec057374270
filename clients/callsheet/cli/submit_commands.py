"""`callsheet submit`: one action from the command line, for trying things out."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from callsheet.cli.errors import CommandError
from callsheet.cli.options import Address, AsJson
from callsheet.cli.output import print_json
from callsheet.cli.submit_lines import RESET_SUFFIX
from callsheet.options.common import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from callsheet.client import ActionOptions, Job, Outcome, SandboxFile, Trajectory

submit_app = typer.Typer(
    help="Submit one action in a job of its own and print its outcome. Exits with 1 unless it succeeds.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Argv = Annotated[list[str], typer.Argument(metavar="-- PROGRAM [ARGUMENT]...", help="What to run.", show_default=False)]
Files = Annotated[
    list[Path] | None,
    typer.Option("--file", exists=True, dir_okay=False, show_default=False, help="Put into the sandbox; repeatable."),
]
Timeout = Annotated[
    float | None,
    typer.Option(min=0.001, metavar="SECONDS", show_default="the server's", help="Execution clock of one attempt."),
]
Patience = Annotated[
    float, typer.Option(min=0.001, metavar="SECONDS", help="How long to go on without a connection to the scheduler.")
]
ExitCode = Annotated[
    bool, typer.Option("--exit-code", help="Exit with what the command exited with; 128 and a signal's number for one.")
]
_PATIENCE_S = 10.0


class Target(NamedTuple):
    """Which scheduler is asked, how long to wait for it, and how to answer."""

    scheduler: str
    patience_s: float
    as_json: bool


@submit_app.command("env-reset")
def env_reset(
    *,
    set_up: Annotated[str, typer.Option(help="Shell command to set the sandbox up with.")] = "",
    image: Annotated[str, typer.Option(help="Root file system, by its name in the managers' image stores.")] = "",
    files: Files = None,
    timeout: Timeout = None,
    scheduler: Address = DEFAULT_ADDRESS,
    patience: Patience = _PATIENCE_S,
    as_json: AsJson = False,
) -> None:
    """Create a sandbox (it goes away with the job, at once)."""
    from callsheet.client import Command

    command = Command.shell(set_up) if set_up else None

    async def submit(trajectory: Trajectory, action_id: str) -> Outcome[Any]:
        return await trajectory.env_reset(
            files=_read(files), set_up=command, image=image, **_options(action_id, timeout)
        )

    _run(Target(scheduler, patience, as_json), _in_trajectory(submit))


@submit_app.command("env-step")
def env_step(
    argv: Argv,
    *,
    files: Files = None,
    timeout: Timeout = None,
    exit_code: ExitCode = False,
    scheduler: Address = DEFAULT_ADDRESS,
    patience: Patience = _PATIENCE_S,
    as_json: AsJson = False,
) -> None:
    """Run a program in a fresh sandbox."""
    from callsheet.client import Command, Succeeded

    async def submit(trajectory: Trajectory, action_id: str) -> Outcome[Any]:
        reset = await trajectory.env_reset(files=_read(files), action_id=action_id + RESET_SUFFIX)
        if not isinstance(reset, Succeeded):
            return reset
        return await trajectory.env_step(Command.argv(*argv), **_options(action_id, timeout))

    _run(Target(scheduler, patience, as_json), _in_trajectory(submit), pass_exit_code=exit_code)


@submit_app.command("generate")
def generate(
    text: Annotated[str, typer.Argument(help="The prompt; its UTF-8 bytes are the tokens.")],
    *,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 16,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, show_default="drawn by the engine")] = None,
    model: Annotated[str, typer.Option(help="Name of the hosted model.")] = "policy",
    timeout: Timeout = None,
    scheduler: Address = DEFAULT_ADDRESS,
    patience: Patience = _PATIENCE_S,
    as_json: AsJson = False,
) -> None:
    """Run a language model."""
    from callsheet.client import Sampling

    async def submit(job: Job, action_id: str) -> Outcome[Any]:
        return await job.generate(
            list(text.encode()),
            Sampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed),
            model=model,
            **_options(action_id, timeout),
        )

    _run(Target(scheduler, patience, as_json), submit)


@submit_app.command("reward-tests")
def reward_tests(
    argv: Argv,
    *,
    files: Files = None,
    timeout: Timeout = None,
    image: Annotated[str, typer.Option(help="Root file system, by its name in the managers' image stores.")] = "",
    exit_code: ExitCode = False,
    scheduler: Address = DEFAULT_ADDRESS,
    patience: Patience = _PATIENCE_S,
    as_json: AsJson = False,
) -> None:
    """Score by a test suite in a sandbox of its own.

    It needs --file or --image.
    """
    from callsheet.client import Command

    if not files and not image:
        raise CommandError("file: a test suite's sandbox needs at least one --file, or an --image", usage=True)

    async def submit(job: Job, action_id: str) -> Outcome[Any]:
        return await job.reward_tests(
            Command.argv(*argv), files=_read(files), image=image, **_options(action_id, timeout)
        )

    _run(Target(scheduler, patience, as_json), submit, pass_exit_code=exit_code)


@submit_app.command("reward-model")
def reward_model(
    text: Annotated[str, typer.Argument(help="The conversation; its UTF-8 bytes are the tokens.")],
    *,
    model: Annotated[str, typer.Option(help="Name of the hosted model.")] = "scorer",
    timeout: Timeout = None,
    scheduler: Address = DEFAULT_ADDRESS,
    patience: Patience = _PATIENCE_S,
    as_json: AsJson = False,
) -> None:
    """Score by a model."""

    async def submit(job: Job, action_id: str) -> Outcome[Any]:
        return await job.reward_model(list(text.encode()), model=model, **_options(action_id, timeout))

    _run(Target(scheduler, patience, as_json), submit)


@submit_app.command("tool-call")
def tool_call(
    service: Annotated[str, typer.Argument(help="Name of the hosted service.")],
    method: Annotated[str, typer.Argument(help="Method or path, as the service defines it.")],
    arguments: Annotated[str, typer.Argument(help="Arguments, as the service defines them.")] = "",
    *,
    timeout: Timeout = None,
    scheduler: Address = DEFAULT_ADDRESS,
    patience: Patience = _PATIENCE_S,
    as_json: AsJson = False,
) -> None:
    """Call an outside API."""

    async def submit(job: Job, action_id: str) -> Outcome[Any]:
        return await job.tool_call(service, method, arguments.encode(), **_options(action_id, timeout))

    _run(Target(scheduler, patience, as_json), submit)


def _options(action_id: str, timeout_s: float | None) -> ActionOptions:
    from callsheet.client import Timeouts

    options: ActionOptions = {"action_id": action_id}
    if timeout_s is not None:
        options["timeouts"] = Timeouts(start_to_close_s=timeout_s)
    return options


def _read(files: list[Path] | None) -> list[SandboxFile]:
    from callsheet.client import SandboxFile

    return [SandboxFile(path.name, path.read_bytes(), mode=path.stat().st_mode & 0o777) for path in files or ()]


def _in_trajectory(
    submit: Callable[[Trajectory, str], Awaitable[Outcome[Any]]],
) -> Callable[[Job, str], Awaitable[Outcome[Any]]]:
    async def open_and_submit(job: Job, action_id: str) -> Outcome[Any]:
        async with job.trajectory("trajectory") as trajectory:
            return await submit(trajectory, action_id)

    return open_and_submit


def _run(
    target: Target, submit: Callable[[Job, str], Awaitable[Outcome[Any]]], *, pass_exit_code: bool = False
) -> None:
    """Submits in a job of its own and prints the outcome.

    Exits with 1 unless it is a success, or with what the command exited with where that is asked for.
    """
    import anyio
    from callsheet.cli.plain import plain_outcome
    from callsheet.cli.submit_progress import watched
    from callsheet.client import Client, ClientOptions, Succeeded

    # The action's id is unique among jobs, so that it alone is what `callsheet explain` needs.
    job_id = f"submit-{uuid.uuid4().hex[:12]}"
    action_id = f"{job_id}-action"

    async def run() -> Outcome[Any]:
        options = ClientOptions(connect_timeout_s=target.patience_s, give_up_after_s=target.patience_s)
        async with Client(target.scheduler, options) as client, await client.open_job(job_id) as job:
            return await watched(target.scheduler, job_id, action_id, lambda: submit(job, action_id))

    outcome = anyio.run(run)
    if target.as_json:
        print_json({"job_id": job_id, **plain_outcome(outcome)})
    else:
        _print_outcome(outcome, job_id)
    if pass_exit_code and (code := _exit_code(outcome)) is not None:
        raise typer.Exit(code)
    if not isinstance(outcome, Succeeded):
        raise typer.Exit(1)


def _exit_code(outcome: Outcome[Any]) -> int | None:
    """What a command exited with, as a shell tells it; None if there was none that ended."""
    from callsheet.client import CommandResult, RewardResult, Succeeded

    result = outcome.value if isinstance(outcome, Succeeded) else None
    command = result.command if isinstance(result, RewardResult) else result
    if not isinstance(command, CommandResult):
        return None
    return 128 + command.signal if command.signal else command.exit_code


def _print_outcome(outcome: Outcome[Any], job_id: str) -> None:
    from callsheet.cli.plain import outcome_name
    from callsheet.client import Cancelled, Expired, Failed, Succeeded

    times = outcome.timeline
    typer.echo(
        f"{outcome_name(outcome)}: action {outcome.action_id} of job {job_id}, {outcome.attempts} attempt(s), "
        f"manager {outcome.manager_id or 'none'}, queue {times.queue_s:.3f} s, execution {times.execution_s:.3f} s, "
        f"overhead {times.overhead_s:.3f} s"
    )
    match outcome:
        case Failed():
            typer.echo(f"{outcome.kind.value}, {outcome.reason}: {outcome.message}")
            result = outcome.partial
        case Cancelled():
            typer.echo(outcome.reason)
            result = outcome.partial
        case Expired():
            typer.echo(f"{outcome.timeout.value} ran out")
            result = None
        case Succeeded():
            result = outcome.value
    _print_result(result)


def _print_result(result: Any) -> None:
    from callsheet.client import CommandResult, EnvResetResult, RewardResult

    match result:
        case None:
            return
        case CommandResult():
            _print_command(result)
        case EnvResetResult():
            typer.echo(f"sandbox {result.sandbox_id}")
            _print_result(result.set_up)
        case RewardResult():
            tests = f" ({result.passed} of {result.total} tests passed)" if result.total else ""
            typer.echo(f"score {result.score:g}{tests}")
            _print_result(result.command)
        case _:
            typer.echo(str(result))


def _print_command(result: Any) -> None:
    how = f"signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
    typer.echo(f"{how} after {result.wall_s:.3f} s")
    for name, content in (("stdout", result.stdout), ("stderr", result.stderr)):
        if content:
            typer.echo(f"--- {name}\n{content.decode(errors='replace').rstrip()}")
