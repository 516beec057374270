"""The scheduler's address and its settings from environment variables. Pure, except that it reads a token's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from callsheet.client.errors import invalid
from callsheet.client.settings import ClientOptions, Tls
from callsheet.client.words.arguments import instance
from callsheet.credentials.channel import SYSTEM
from callsheet.credentials.token import checked_token, read_token, why

DEFAULT_TARGET: Final = "127.0.0.1:7077"
"""The default address of `callsheet up`."""

# As options of commands that are on or off read their variables.
_SWITCH: Final = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
_RULE: Final = f"host:port with a port from 1 to 65535, for instance {DEFAULT_TARGET}"
# The forms of names that gRPC resolves itself. Only the first two have a port at their end in any case.
_WITH_PORT: Final = ("dns:", "passthrough:")
_GRPC_NAMES: Final = (*_WITH_PORT, "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")


def check_target(target: object, options: ClientOptions) -> str:
    """Returns an address that a client can dial.

    Args:
        target: "host:port", "[v6 address]:port", or a name in one of the forms of gRPC, for instance
            "dns:///host:port" or "unix:/path".
        options: Options of the connection.

    Raises:
        InvalidArgumentError: The address has none of these forms.
    """
    text = instance("target", target, str, _RULE)
    instance("options", options, ClientOptions, "a ClientOptions")
    form = next((form for form in _GRPC_NAMES if text.startswith(form)), None)
    if form is None:
        _check_host_and_port(text, text)
    elif not text.removeprefix(form).strip("/"):
        raise invalid("target", text, _RULE)
    elif form in _WITH_PORT:
        _check_host_and_port(text, text.removeprefix(form).rpartition("/")[2])
    return text


def from_environment(environ: Mapping[str, str]) -> tuple[str, ClientOptions]:
    """Returns the address and the options that environment variables name.

    Raises:
        InvalidArgumentError: A variable has no token, or half a pair of files, or names a file that cannot be read.
    """
    options = _with_token(environ)
    files = {name: environ.get(f"CALLSHEET_TLS_{name}") or None for name in ("CA", "CERT", "KEY")}
    if any(files.values()):
        ca = None if files["CA"] == SYSTEM else files["CA"]
        options = replace(options, tls=Tls(ca, files["CERT"], files["KEY"]))
    if gateway := environ.get("CALLSHEET_GATEWAY"):
        options = replace(options, gateway=gateway)
    if wanted := environ.get("CALLSHEET_USE_PROXY"):
        if wanted.lower() not in _SWITCH:
            raise invalid("CALLSHEET_USE_PROXY", wanted, f"one of {', '.join(_SWITCH)}")
        options = replace(options, use_proxy=_SWITCH[wanted.lower()])
    return environ.get("CALLSHEET_SCHEDULER") or DEFAULT_TARGET, options


def _with_token(environ: Mapping[str, str]) -> ClientOptions:
    token, path = environ.get("CALLSHEET_TOKEN"), environ.get("CALLSHEET_TOKEN_FILE")
    if token or not path:
        try:
            return ClientOptions(token=checked_token(token) if token else None)
        except ValueError as error:
            raise invalid("CALLSHEET_TOKEN", "", f"must be a token: it {error}") from None
    try:
        return ClientOptions(token=read_token(path), token_file=path)
    except (OSError, ValueError) as error:
        raise invalid("CALLSHEET_TOKEN_FILE", path, f"must be a file with a token: {why(error)}") from error


def _check_host_and_port(target: str, address: str) -> None:
    if "://" in address:
        raise invalid("target", target, f"{_RULE}; no scheme like http://")
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in bare) != (bare != host) or any(mark in bare for mark in "/ []@"):
        raise invalid("target", target, _RULE)
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise invalid("target", target, _RULE)
