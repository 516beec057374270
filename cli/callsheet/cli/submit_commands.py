"""`callsheet submit`: one action from the command line, for trying things out."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from callsheet.cli.options import options_of
from callsheet.cli.output import CommandError, print_json, say
from callsheet.options.common import DEFAULT_ADDRESS, Address, AsJson
from callsheet.options.declaration import Setting

if TYPE_CHECKING:
    from callsheet.client import ActionOptions, Client, Job, Outcome, SandboxFile

submit_app = typer.Typer(
    help="Submit one action, and print its outcome. Exits with 1 unless it succeeds. By default its job is its own.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Argv = Annotated[
    list[str],
    typer.Argument(metavar="-- PROGRAM [ARGUMENT]...", help="Program to run, with its arguments.", show_default=False),
]
Files = Annotated[
    list[Path] | None,
    typer.Option("--file", exists=True, dir_okay=False, show_default=False, help="Put into the sandbox; repeatable."),
]
Image = Annotated[str, typer.Option(help="Root file system, by its name in an image store or a registry.")]
ExitCode = Annotated[
    bool,
    typer.Option(
        "--exit-code",
        help="Exit with the command's exit code, or with 128 plus the number of the signal that ended it.",
    ),
]
_RESET_SUFFIX = "-reset"


@dataclass(frozen=True, slots=True)
class SubmitSettings:
    """How an action is submitted and its outcome told, whatever its kind."""

    job: Annotated[
        str | None,
        Setting(
            "The job to submit in, for instance the one of your token. An open job stays open; otherwise the job is "
            "opened, and closed at the end.",
            default_text="one of its own",
        ),
    ] = None
    timeout: Annotated[
        float | None,
        Setting("Execution clock of one attempt.", metavar="SECONDS", default_text="the server's", least=0.001),
    ] = None
    scheduler: Address = DEFAULT_ADDRESS
    patience: Annotated[
        float,
        Setting("Seconds to continue without a connection to the scheduler.", metavar="SECONDS", least=0.001),
    ] = 10.0
    as_json: AsJson = False


@submit_app.command("env-reset")
@options_of(settings=SubmitSettings)
def env_reset(
    *,
    set_up: Annotated[str, typer.Option(help="Shell command to set the sandbox up with.")] = "",
    image: Image = "",
    files: Files = None,
    settings: SubmitSettings,
) -> None:
    """Create a sandbox, which ends with the command."""

    async def submit(job: Job, options: ActionOptions) -> Outcome[Any]:
        async with job.trajectory(f"{options['action_id']}-trajectory") as trajectory:
            return await trajectory.env_reset(files=_read(files), set_up=set_up or None, image=image, **options)

    _run(settings, submit)


@submit_app.command("env-step")
@options_of(settings=SubmitSettings)
def env_step(argv: Argv, *, files: Files = None, exit_code: ExitCode = False, settings: SubmitSettings) -> None:
    """Run a program in a fresh sandbox."""
    from callsheet.client import Succeeded

    async def submit(job: Job, options: ActionOptions) -> Outcome[Any]:
        async with job.trajectory(f"{options['action_id']}-trajectory") as trajectory:
            reset = await trajectory.env_reset(files=_read(files), action_id=f"{options['action_id']}{_RESET_SUFFIX}")
            if not isinstance(reset, Succeeded):
                return reset
            return await trajectory.env_step(argv, **options)

    _run(settings, submit, pass_exit_code=exit_code)


@submit_app.command("generate")
@options_of(settings=SubmitSettings)
def generate(
    text: Annotated[str, typer.Argument(help="The prompt; its UTF-8 bytes are the tokens.")],
    *,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 16,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, show_default="drawn by the engine")] = None,
    model: Annotated[str, typer.Option(help="Name of the hosted model.")] = "policy",
    settings: SubmitSettings,
) -> None:
    """Run a language model."""
    from callsheet.client import Sampling

    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    tokens = list(text.encode())
    _run(settings, lambda job, options: job.generate(tokens, sampling, model=model, **options))


@submit_app.command("reward-tests")
@options_of(settings=SubmitSettings)
def reward_tests(
    argv: Argv,
    *,
    files: Files = None,
    image: Image = "",
    exit_code: ExitCode = False,
    settings: SubmitSettings,
) -> None:
    """Score by a test suite in a sandbox of its own.

    It needs --file or --image.
    """
    if not files and not image:
        raise CommandError("file: a test suite's sandbox needs at least one --file, or an --image", usage=True)
    _run(
        settings,
        lambda job, options: job.reward_tests(argv, files=_read(files), image=image, **options),
        pass_exit_code=exit_code,
    )


@submit_app.command("reward-model")
@options_of(settings=SubmitSettings)
def reward_model(
    text: Annotated[str, typer.Argument(help="The conversation; its UTF-8 bytes are the tokens.")],
    *,
    model: Annotated[str, typer.Option(help="Name of the hosted model.")] = "scorer",
    settings: SubmitSettings,
) -> None:
    """Score by a model."""
    _run(settings, lambda job, options: job.reward_model(list(text.encode()), model=model, **options))


@submit_app.command("tool-call")
@options_of(settings=SubmitSettings)
def tool_call(
    service: Annotated[str, typer.Argument(help="Name of the hosted service.")],
    method: Annotated[str, typer.Argument(help="Method or path, as the service defines it.")],
    arguments: Annotated[str, typer.Argument(help="Arguments, as the service defines them.")] = "",
    *,
    settings: SubmitSettings,
) -> None:
    """Call an outside API."""
    _run(settings, lambda job, options: job.tool_call(service, method, arguments.encode(), **options))


def _read(files: list[Path] | None) -> list[SandboxFile]:
    from callsheet.client import SandboxFile

    return [SandboxFile(path.name, path.read_bytes(), mode=path.stat().st_mode & 0o777) for path in files or ()]


def _run(
    settings: SubmitSettings,
    submit: Callable[[Job, ActionOptions], Awaitable[Outcome[Any]]],
    *,
    pass_exit_code: bool = False,
) -> None:
    """Submits and prints the outcome.

    Exits with 1 unless it is a success, or with what the command exited with where that is asked for.
    """
    import anyio
    from callsheet.cli.plain import plain_outcome
    from callsheet.cli.questions import connection_options
    from callsheet.cli.submit_progress import watched
    from callsheet.client import Client, Succeeded, Timeouts

    # The action's id is unique among jobs, so that it alone is what `callsheet explain` needs.
    name = f"submit-{uuid.uuid4().hex[:12]}"
    job_id, action_id = settings.job or name, f"{name}-action"
    options: ActionOptions = {"action_id": action_id, "timeouts": Timeouts(start_to_close_s=settings.timeout)}

    async def run() -> Outcome[Any]:
        patience = connection_options(connect_timeout_s=settings.patience, give_up_after_s=settings.patience)
        async with Client(settings.scheduler, patience) as client, _job(client, job_id) as job:
            shown = (action_id, action_id + _RESET_SUFFIX)
            return await watched(settings.scheduler, job_id, shown, lambda: submit(job, options))

    outcome = anyio.run(run)
    if settings.as_json:
        print_json({"job_id": job_id, **plain_outcome(outcome)})
    else:
        _print_outcome(outcome, job_id)
    if pass_exit_code and (code := _exit_code(outcome)) is not None:
        raise typer.Exit(code)
    if not isinstance(outcome, Succeeded):
        raise typer.Exit(1)


@asynccontextmanager
async def _job(client: Client, job_id: str) -> AsyncIterator[Job]:
    """A job that is open already, and stays so, or one that is opened and closed here."""
    try:
        # Not by `open_job`: one that is open may have been opened with other arguments.
        await client.job(job_id).status()
    except LookupError:
        async with await client.open_job(job_id) as job:
            yield job
    else:
        yield client.job(job_id)


def _exit_code(outcome: Outcome[Any]) -> int | None:
    """Returns the exit code of a command as a shell gives it; None if no command ended."""
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
    say(
        f"{outcome_name(outcome)}: action {outcome.action_id} of job {job_id}, {outcome.attempts} attempt(s), "
        f"manager {outcome.manager_id or 'none'}, queue {times.queue_s:.3f} s, "
        f"{''.join(f'waiting for {cause} {seconds:.3f} s, ' for cause, seconds in times.waited_s.items())}"
        f"execution {times.execution_s:.3f} s, overhead {times.overhead_s:.3f} s"
    )
    match outcome:
        case Failed():
            say(f"{outcome.kind.value}, {outcome.reason}: {outcome.message}")
            result = outcome.partial
        case Cancelled():
            say(outcome.reason)
            result = outcome.partial
        case Expired():
            say(f"{outcome.timeout.value} ran out")
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
            say(f"sandbox {result.sandbox_id}")
            _print_result(result.set_up)
        case RewardResult():
            tests = f" ({result.passed} of {result.total} tests passed)" if result.total else ""
            say(f"score {result.score:g}{tests}")
            _print_result(result.command)
        case _:
            say(str(result))


def _print_command(result: Any) -> None:
    how = f"signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
    say(f"{how} after {result.wall_s:.3f} s")
    for name, content in (("stdout", result.stdout), ("stderr", result.stderr)):
        if content:
            say(f"--- {name}\n{content.decode(errors='replace').rstrip()}")
