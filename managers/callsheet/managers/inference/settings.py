"""Settings of an inference manager. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from callsheet.managers.inference.weight_places import check_place
from callsheet.managers.models.options import LoadAtFirstUse, Seed, Weights
from callsheet.options.common import default_data_dir
from callsheet.options.declaration import AtLeast, PathRule, Setting, check_least

DEFAULT_SERVICE = "policy"
"""Name of the service where the user chose none."""
DEFAULT_ENGINE = "torch"


def default_log_dir() -> Path:
    """Returns the default directory for the logs of launched servers."""
    return default_data_dir() / "logs"


def _server_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise ValueError("must hold no password; give the key as engine_api_key")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r}: must be http://HOST:PORT or https://HOST:PORT")
    return url


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceSettings:
    """Settings of the model to serve, and of every engine.

    Attributes:
        policy_version: Version of the weights at the start.
        cores: The cores to pin them to, see `on_cores`; empty does not pin.
        launch_name: Name of the launched server in the names of its log and its container.
    """

    engine: Annotated[str, Setting("Driver of the engine.", variable="CALLSHEET_ENGINE")] = DEFAULT_ENGINE
    engine_options: Annotated[
        tuple[str, ...],
        Setting(
            "A setting of that driver's own; repeatable.", flag="--engine-option", metavar="NAME=VALUE", repeatable=True
        ),
    ] = ()
    urls: Annotated[
        tuple[str, ...],
        Setting(
            "Address of an engine's server, such as http://host:30000; repeatable: each is one engine.",
            flag="--url",
            metavar="URL",
            repeatable=True,
            parse=_server_url,
        ),
    ] = ()
    launches: Annotated[
        tuple[str, ...],
        Setting(
            "Command of an engine's server for the manager to run; repeatable: each is one engine. It is split as in a "
            "shell; {port} and {host} are filled in, or added at the end for SGLang and vLLM.",
            flag="--launch",
            metavar="COMMAND",
            repeatable=True,
        ),
    ] = ()
    launch_stop: Annotated[
        str | None,
        Setting(
            'Command that ends what is no process of that server\'s, such as "docker rm --force {name}".',
            flag="--launch-stop",
            metavar="COMMAND",
            default_text="none",
        ),
    ] = None
    launch_logs: Annotated[
        Path,
        Setting(
            "Directory of the logs of those servers.",
            default=default_log_dir,
            default_text="~/.local/state/callsheet/logs",
            parse=Path.absolute,
            path=PathRule(),
        ),
    ] = field(default_factory=default_log_dir)
    launch_name: str = DEFAULT_SERVICE
    engine_api_key: Annotated[
        str | None,
        Setting("The API key of that server.", variable="CALLSHEET_ENGINE_API_KEY", secret=True, default_text="none"),
    ] = field(default=None, repr=False)
    script: Annotated[
        Path | None,
        Setting(
            "A JSON file with the answers of the scripted engine.",
            metavar="FILE",
            variable="CALLSHEET_SCRIPT",
            default_text="none",
            path=PathRule(exists=True, file=True, directory=False, resolve=True),
        ),
    ] = None
    model: Annotated[
        str,
        Setting(
            "Directory of a Hugging Face model, served as the service named policy; or another name for the service.",
            metavar="DIR|NAME",
            variable="CALLSHEET_MODEL",
        ),
    ] = DEFAULT_SERVICE
    weights: Weights = None
    seed: Seed = 0
    weights_below: Annotated[
        tuple[str, ...],
        Setting(
            "Source that jobs may publish weights from: a directory, the beginning of a URI, or tcp://HOST for groups; "
            "repeatable. Without it any source for callers without tokens, and none for those with tokens.",
            metavar="DIR|URI",
            repeatable=True,
            parse=check_place,
        ),
    ] = ()
    policy_version: Annotated[int, AtLeast(0)] = 0
    slots: Annotated[int, Setting("The most sequences in the batch; a server reports its own.", least=1)] = 64
    threads: Annotated[
        int | None,
        Setting(
            "Threads of the inference engine; it reserves as many cores.",
            flag="--engine-threads",
            variable="CALLSHEET_ENGINE_THREADS",
            default_text="a quarter of the cores, at least 1",
            least=1,
        ),
    ] = None
    cores: tuple[int, ...] = ()
    engine_gpus: Annotated[
        int | None,
        Setting("GPUs that each engine holds, for its cost.", default_text="as many as it tells", least=0),
    ] = None
    kv_cache_tokens: Annotated[int, Setting("Tokens of the KV cache of all sequences together.", least=16)] = 32_768
    load_at_first_use: LoadAtFirstUse = False

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model: '' is empty; it must be given")
        check_least(self)
        if self.script is not None and self.engine == DEFAULT_ENGINE:
            raise ValueError(f"script: {str(self.script)!r}: is for engine 'scripted', and engine is {self.engine!r}")
        if self.urls and self.launches:
            raise ValueError(f"url: {self.urls[0]!r}: must not be given with launch, whose servers have free ports")
        if self.launches and self.engine == DEFAULT_ENGINE:
            raise ValueError("launch: needs an engine that is a server: give --engine sglang, vllm or openai")
        if self.model_directory is not None and self.weights is not None:
            raise ValueError(f"model: {self.model!r}: is a directory, which weights must not be given with")

    @property
    def model_directory(self) -> Path | None:
        """The user's own model; None where `model` is a name."""
        return model_directory(self.model)

    @property
    def service(self) -> str:
        """Name of the hosted service."""
        return self.model if self.model_directory is None else DEFAULT_SERVICE

    @property
    def server_url(self) -> str:
        """Returns the address of this manager's only server.

        Raises:
            ValueError: No address is given, or several are.
        """
        if len(self.urls) != 1:
            raise ValueError(f"url: {len(self.urls)} are given; an engine behind HTTP has exactly one")
        return self.urls[0]

    @property
    def launch_command(self) -> str:
        """The command of the one server of this manager.

        Raises:
            ValueError: None is given, or several are.
        """
        if len(self.launches) != 1:
            raise ValueError(f"launch: {len(self.launches)} are given; a manager launches exactly one")
        return self.launches[0]

    @property
    def served_apart(self) -> bool:
        """Returns whether the engine is a server with a process and cores of its own."""
        return bool(self.urls or self.launches)

    @property
    def thread_count(self) -> int:
        """Returns the threads of the engine's kernels: one by default."""
        return self.threads or 1


def model_directory(model: str) -> Path | None:
    """Returns the directory that `--model` names; None where it is a name for the service.

    A text with a slash is a directory whether it is there or not, so that a misspelt one is told as such.
    """
    path = Path(model).expanduser()
    return path if "/" in model or path.is_dir() else None


def on_cores(settings: InferenceSettings, cores: Sequence[int]) -> InferenceSettings:
    """Returns the settings of an engine on a node with these cores: its threads are pinned to the last of them.

    The scheduler reserves a count of cores for a hosted service and never grants them to attempts. By convention they
    are the last of the node's core list.

    Raises:
        ValueError: The engine would leave no core for actions.
    """
    threads = share_of_cores(len(cores), settings.threads)
    return replace(settings, threads=threads, cores=tuple(cores[-threads:]))


def share_of_cores(cores: int, requested: int | None) -> int:
    """Cores that the inference engine keeps for itself: a quarter, at least one, and never all of them.

    Args:
        cores: Cores of the node.
        requested: The user's wish; None chooses.

    Raises:
        ValueError: The engine would leave no core for actions.
    """
    threads = max(1, cores // 4) if requested is None else requested
    if not 1 <= threads < cores:
        raise ValueError(
            f"engine threads: {threads} of {cores} cores; the engine needs at least one core and must leave at least "
            "one for actions (give more --cpus, fewer --engine-threads, or leave inference out with --managers)"
        )
    return threads
