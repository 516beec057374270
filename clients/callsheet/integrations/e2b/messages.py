"""The messages of E2B's protocols that this facade reads and writes, as JSON."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

Body = dict[str, Any]
KEEP_ALIVE: Body = {"event": {"keepalive": {}}}


class Message(BaseModel):
    """A message of an rpc. As in all JSON of protobuf, null stands for what is not given."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


def _decoded(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return base64.b64decode(given.replace("-", "+").replace("_", "/") + "=" * (-len(given) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError("must be base64") from error


Content = Annotated[bytes, BeforeValidator(_decoded)]


class ProcessConfig(Message):
    """A program with its arguments, variables and working directory."""

    cmd: str = ""
    args: list[str] = []
    envs: dict[str, str] = {}
    cwd: str = ""


class StartProcess(Message):
    """Begins a process. A client that does not speak of `stdin` wants one."""

    process: ProcessConfig = ProcessConfig()
    pty: dict[str, Any] | None = None
    tag: str | None = None
    stdin: bool = True


class ProcessSelector(Message):
    """Names a process by its id, or by its tag."""

    pid: int | None = None
    tag: str | None = None


class SelectProcess(Message):
    """A request about one process."""

    process: ProcessSelector = ProcessSelector()


class ProcessInput(Message):
    """Input for a process."""

    stdin: Content | None = None
    pty: Content | None = None


class SendInput(SelectProcess):
    """Writes to a process's standard input."""

    input: ProcessInput = ProcessInput()


class InputBegin(Message):
    """Names the process to which a stream is input."""

    process: ProcessSelector = ProcessSelector()


class InputPart(Message):
    """A part of a stream of input."""

    input: ProcessInput = ProcessInput()


class StreamInput(Message):
    """One message of a stream of input."""

    start: InputBegin | None = None
    data: InputPart | None = None


class SendSignal(SelectProcess):
    """Signals a process."""

    signal: Literal["SIGNAL_SIGTERM", "SIGNAL_SIGKILL", 9, 15]

    @property
    def number(self) -> int:
        """The signal's number."""
        return 9 if self.signal in {9, "SIGNAL_SIGKILL"} else 15


class OnePath(Message):
    """A request about one path."""

    path: str


class ListDirectory(OnePath):
    """Lists a directory, and below it as far as `depth` says."""

    depth: int = 1


class MovePath(Message):
    """Renames a file or a directory."""

    source: str
    destination: str


class AutoResume(BaseModel):
    """Setting for sandboxes that were paused because their time was over: a request wakes them, or does not."""

    enabled: bool = False


class PauseSandbox(BaseModel):
    """Pauses a sandbox, with what its memory holds."""

    memory: bool = True


class NewSandbox(BaseModel):
    """Makes a sandbox.

    Attributes:
        template_id: The image, or E2B's own default.
        timeout: Seconds that it lives.
        metadata: Kept, to find it by.
        env_vars: Variables of all its commands.
        auto_pause: Pause it when its time is over.
        auto_pause_memory: Keep its memory then.
        auto_resume: Whether a request wakes it then.
        network: What this facade cannot do, like all below.
    """

    model_config = ConfigDict(populate_by_name=True, extra="ignore")

    template_id: str = Field(alias="templateID")
    timeout: int | None = None
    metadata: dict[str, str] | None = None
    env_vars: dict[str, str] | None = Field(default=None, alias="envVars")
    auto_pause: bool = Field(default=False, alias="autoPause")
    auto_pause_memory: bool = Field(default=True, alias="autoPauseMemory")
    auto_resume: AutoResume = Field(default=AutoResume(), alias="autoResume")
    network: Any = None
    mcp: Any = None
    iam: Any = None
    volume_mounts: Any = Field(default=None, alias="volumeMounts")


class SandboxTimeout(BaseModel):
    """Request that sets how long a sandbox is to live from now on, in seconds; None leaves it."""

    timeout: int | None = None


class ExecuteCode(BaseModel):
    """Executes code, with the variables of the executions before.

    Attributes:
        code: What to execute.
        language: Python, if none is given.
        context_id: Where; None is the one context that there is.
        env_vars: Environment variables of this execution.
    """

    code: str
    language: str | None = None
    context_id: str | None = None
    env_vars: dict[str, str] | None = None


def start_event(pid: int) -> Body:
    """A process has begun."""
    return {"event": {"start": {"pid": pid}}}


def data_event(stream: Literal["stdout", "stderr"], content: bytes) -> Body:
    """A process has printed."""
    return {"event": {"data": {stream: base64.b64encode(content).decode()}}}


def end_event(exit_code: int, error: str) -> Body:
    """A process has ended."""
    end: Body = {"exitCode": exit_code, "exited": exit_code >= 0, "status": f"exit status {exit_code}"}
    if error:
        end["error"] = error
    return {"event": {"end": end}}
