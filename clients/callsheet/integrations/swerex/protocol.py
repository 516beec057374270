"""The bodies of SWE-ReX's REST protocol (version 1.4), as far as they are requests or hold more than nothing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter


class CreateSession(BaseModel):
    """Begins a shell session.

    Attributes:
        startup_source: Files to source in it.
        session: Its name.
        session_type: Of the shell.
        startup_timeout: Seconds that sourcing may take.
    """

    startup_source: list[str] = []
    session: str = "default"
    session_type: Literal["bash"] = "bash"
    startup_timeout: float = 1.0


class RunInSession(BaseModel):
    """Runs text in a session.

    Attributes:
        action_type: Tells it from an interrupt.
        command: The text.
        session: Name of the session.
        timeout: Seconds; None for no timeout of its own.
        is_interactive_command: The text starts a program that reads from a terminal.
        is_interactive_quit: The text ends such a program.
        check: "raise" makes a non-zero exit code an error, "silent" tells it, "ignore" leaves it out.
        error_msg: Put before the message of that error.
        expect: Output that ends the step beside the prompt.
    """

    action_type: Literal["bash"] = "bash"
    command: str
    session: str = "default"
    timeout: float | None = None
    is_interactive_command: bool = False
    is_interactive_quit: bool = False
    check: Literal["silent", "raise", "ignore"] = "raise"
    error_msg: str = ""
    expect: list[str] = []


class InterruptSession(BaseModel):
    """Ends what runs in a session, as Ctrl-C does."""

    action_type: Literal["bash_interrupt"]
    session: str = "default"


class CloseSession(BaseModel):
    """Ends a session."""

    session: str = "default"
    session_type: Literal["bash"] = "bash"


class Execute(BaseModel):
    """Runs a program, as `subprocess.run` does.

    Attributes:
        command: An argument vector, or a text with `shell`.
        timeout: Seconds; None for no timeout of its own.
        shell: The text is one for /bin/sh.
        check: A non-zero exit code is an error.
        error_msg: Put before the message of that error.
        env: All of its environment; None for the sandbox's own.
        cwd: Its working directory.
        merge_output_streams: Standard error goes where standard output goes.
    """

    command: str | list[str]
    timeout: float | None = None
    shell: bool = False
    check: bool = False
    error_msg: str = ""
    env: dict[str, str] | None = None
    cwd: str | None = None
    merge_output_streams: bool = False


class ReadFile(BaseModel):
    """Returns a file as text; `encoding` and `errors` are those of `open`."""

    path: str
    encoding: str | None = None
    errors: str | None = None


class WriteFile(BaseModel):
    """Writes text to a file."""

    content: str
    path: str


SessionAction = RunInSession | InterruptSession
SESSION_ACTION: TypeAdapter[SessionAction] = TypeAdapter(
    Annotated[RunInSession | InterruptSession, Field(discriminator="action_type")]
)

Response = dict[str, Any]
"""Fields that a response does not name have the defaults of SWE-ReX's own models."""


def observation(output: str, exit_code: int | None, failure_reason: str = "") -> Response:
    """Returns the response to a step."""
    return {
        "output": output,
        "exit_code": exit_code,
        "failure_reason": failure_reason,
        "expect_string": "",
        "session_type": "bash",
    }
