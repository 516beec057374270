"""The gateway of a stack: whether there is one, where it listens, and what it is told."""

from __future__ import annotations

import json
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from callsheet.deploy.roles import Role
from callsheet.deploy.stack_settings import AUTO_GATEWAY, StackSettings
from callsheet.deploy.tokens import token_path
from callsheet.gateway.server.settings import GatewaySettings
from callsheet.options.declaration import command_line

# What the gateway needs of its extra; the rest is of other extras, too.
_MODULES: Final = ("starlette", "uvicorn", "sqlalchemy", "httptools", "msgspec")
_BYTES: Final = frozenset({"torch", "scripted"})


def gateway_listen(settings: StackSettings) -> str | None:
    """Returns where the gateway of a stack listens, with its port; None where there is none.

    Left to itself there is one if its extra is installed and the tokens of the model are known. It takes the port after
    the scheduler's, or a free one where that is taken.
    """
    if settings.gateway is None or Role.INFERENCE not in settings.managers:
        return None
    if settings.gateway != AUTO_GATEWAY:
        return with_port(settings.gateway)
    if why_no_gateway(settings) is not None:
        return None
    host, _, port = settings.listen.rpartition(":")
    return with_port(f"{host}:{int(port) + 1 if 0 < int(port) < 0xFFFF else 0}", or_free=True)


def why_no_gateway(settings: StackSettings) -> str | None:
    """Returns why a stack that is left to itself has no gateway; None where it has one, or nobody expects one."""
    if settings.gateway != AUTO_GATEWAY or Role.INFERENCE not in settings.managers:
        return None
    if not all(map(find_spec, _MODULES)):
        return "the extra 'gateway' is not installed"
    return _unknown_tokens(settings)


def gateway_arguments(settings: StackSettings, listen: str, scheduler: str) -> list[str]:
    """Returns the command line of a stack's gateway, after `callsheet`.

    Args:
        settings: The stack's.
        listen: Where it is to listen.
        scheduler: Where it dials the scheduler.
    """
    told = {
        "scheduler": scheduler,
        "listen": listen,
        "data_dir": settings.data_dir,
        "service": settings.inference.service,
        "tokenizer": settings.inference.model_directory,
        "tls_cert": settings.access.tls_cert,
        "tls_key": settings.access.tls_key,
        "insecure": settings.access.insecure or None,
        "host_names": settings.access.host_names or None,
    }
    return ["gateway", *command_line(GatewaySettings, told)]


def gateway_environment(settings: StackSettings) -> dict[str, str]:
    """Returns the variables that a stack's gateway calls the scheduler with."""
    told: dict[str, str] = {}
    if settings.access.tokens is not None:
        told["CALLSHEET_TOKEN_FILE"] = str(token_path(settings.data_dir, Role.GATEWAY))
    if settings.access.tls_cert is not None and settings.tls_ca is not None:
        told["CALLSHEET_TLS_CA"] = settings.tls_ca
    return told


def gateway_url(settings: StackSettings, listen: str) -> str:
    """Returns the URL of a stack's gateway."""
    return f"{'http' if settings.access.tls_cert is None else 'https'}://{listen}"


def _unknown_tokens(settings: StackSettings) -> str | None:
    """Explains why prompts cannot be rendered, by a directory's tokenizer and template or as the demo's bytes."""
    inference, directory = settings.inference, settings.inference.model_directory
    if directory is None:
        is_demo = inference.engine in _BYTES and not inference.urls
        return None if is_demo else "the engine's tokenizer is not known; run callsheet gateway with --tokenizer DIR"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (directory / name).is_file():
            return f"{directory} has no {name}"
    if (directory / "chat_template.jinja").is_file() or _has_template(directory / "tokenizer_config.json"):
        return None
    return f"{directory} has no chat template"


def _has_template(config: Path) -> bool:
    try:
        return bool(json.loads(config.read_text(encoding="utf-8")).get("chat_template"))
    except (ValueError, AttributeError):
        return False


def with_port(listen: str, *, or_free: bool = False) -> str:
    """Returns an address with a port that is free now, where it names none.

    Args:
        listen: "host:port".
        or_free: Whether another port will do where the one that it names is taken.
    """
    host, _, port = listen.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    for wanted in (int(port), 0) if or_free else (int(port),):
        if wanted and not or_free:
            return listen
        try:
            with socket.create_server((bare, wanted), family=family) as found:
                return f"{host}:{found.getsockname()[1]}"
        except OSError:
            continue
    return listen
