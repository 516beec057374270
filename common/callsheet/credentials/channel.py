"""Channels to a scheduler: with TLS or without, renewed as their files change, and the token that each rpc carries."""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from callsheet.credentials.secret_files import secret_file

# When a certificate is valid, beside what this machine's clock says. Pure.

_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
# The validity of X.509 in DER: a sequence of two times, each with two digits of its year or with four.
_TIME = rb"(?:\x17\x0d(\d{12})|\x18\x0f(\d{14}))Z"
_VALIDITY = re.compile(rb"\x30." + _TIME + _TIME, re.DOTALL)
_FORMAT = "%Y-%m-%d %H:%M:%S UTC"


def clock_text(now: datetime) -> str:
    """Returns a time as messages tell it."""
    return now.astimezone(UTC).strftime(_FORMAT)


def why_not_valid(pem: bytes, now: datetime) -> str | None:
    """Returns why the first certificate is not valid at a time; None if it is, or if its validity cannot be read."""
    try:
        block = pem.partition(_BEGIN)[2].partition(_END)[0]
        found = _VALIDITY.search(base64.b64decode(block))
        if found is None:
            return None
        begins, ends = _time(found[1], found[2]), _time(found[3], found[4])
    except (binascii.Error, ValueError):
        return None
    if begins <= now <= ends:
        return None
    cure = "set the clock, or wait" if now < begins else "renew it, or set the clock"
    return f"valid from {clock_text(begins)} until {clock_text(ends)}, but the clock says {clock_text(now)}: {cure}"


def _time(short: bytes | None, full: bytes | None) -> datetime:
    digits = full if full is not None else (b"20" if (short or b"") < b"50" else b"19") + (short or b"")
    return datetime.strptime(digits.decode(), "%Y%m%d%H%M%S").replace(tzinfo=UTC)


# The token of a process: checked before gRPC sees it, and read anew where it comes from a file.

_log = logging.getLogger("callsheet.credentials")


def checked_token(text: str) -> str:
    """A token without the space around it.

    Raises:
        ValueError: It is none; the message gives the rule and nothing of the text.
    """
    token = text.strip()
    if not token:
        raise ValueError("is empty: it must hold a token")
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise ValueError("holds no token: it must be one word of ASCII characters")
    return token


def read_token(path: str) -> str:
    """The token that a file holds.

    Raises:
        OSError: It cannot be read.
        ValueError: It holds none.
    """
    return checked_token(secret_file(path).read_text(encoding="utf-8"))


def why(error: OSError | ValueError) -> str:
    """Why a file gave no token, without anything of what it holds."""
    if isinstance(error, OSError):
        return f"it cannot be read: {error.strerror}"
    return "it is no text" if isinstance(error, UnicodeDecodeError) else f"it {error}"


class FileToken:
    """A token in a file. One that was read is good until the file holds another: it may be on its way just now."""

    def __init__(self) -> None:
        self._token: str | None = None
        self._readable = True

    def read(self, path: str) -> str:
        """What the file holds now, or the last one where that cannot be read; the log says so once.

        Raises:
            OSError: It cannot be read, and never was.
            ValueError: It holds no token, and never did.
        """
        try:
            self._token = read_token(path)
            self._readable = True
        except (OSError, ValueError) as error:
            if self._token is None:
                if isinstance(error, OSError):
                    raise
                raise ValueError(f"token_file: {path}: {why(error)}") from None
            if self._readable:
                _log.warning("no new token file=%s reason=%s", path, why(error))
            self._readable = False
        return self._token


# A channel that follows its files: when certificates have changed, new calls go over a new connection.


class RenewedChannel(grpc.aio.Channel):
    """Opens a channel anew when one of its files has changed.

    Calls that run go on where they began, and what is not used any more closes its connection when it is idle. A file
    that cannot be read just then, as it is being replaced, leaves all as it is; the log
    says so once.
    """

    def __init__(self, open_channel: Callable[[], grpc.aio.Channel], files: Sequence[Path]) -> None:
        """Opens the first one.

        Raises:
            OSError: A file cannot be read; its error names it.
        """
        self._open = open_channel
        self._files = files
        self._readable = True
        self._stamp = self._stamped()
        self._channels = [open_channel()]

    async def __aenter__(self) -> RenewedChannel:
        """Returns itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes it."""
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """See `grpc.aio.Channel.close`."""
        for channel in self._channels:
            await channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """See `grpc.aio.Channel.get_state`."""
        return self._current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """See `grpc.aio.Channel.wait_for_state_change`."""
        await self._current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """See `grpc.aio.Channel.channel_ready`."""
        await self._current().channel_ready()

    def unary_unary(self, *of: Any, **options: Any) -> Any:
        """See `grpc.aio.Channel.unary_unary`."""
        return self._later("unary_unary", of, options)

    def unary_stream(self, *of: Any, **options: Any) -> Any:
        """See `grpc.aio.Channel.unary_stream`."""
        return self._later("unary_stream", of, options)

    def stream_unary(self, *of: Any, **options: Any) -> Any:
        """See `grpc.aio.Channel.stream_unary`."""
        return self._later("stream_unary", of, options)

    def stream_stream(self, *of: Any, **options: Any) -> Any:
        """See `grpc.aio.Channel.stream_stream`."""
        return self._later("stream_stream", of, options)

    def _later(self, arity: str, of: tuple[Any, ...], options: dict[str, Any]) -> Callable[..., Any]:
        """A method that looks at each call which channel it goes over."""

        def call(*arguments: Any, **how: Any) -> Any:
            return getattr(self._current(), arity)(*of, **options)(*arguments, **how)

        return call

    def _current(self) -> grpc.aio.Channel:
        try:
            stamp = self._stamped()
            if stamp != self._stamp:
                self._channels.append(self._open())
                self._stamp = stamp
            self._readable = True
        except OSError as error:
            # What is open goes on, and the next call looks again.
            if self._readable:
                _log.warning("certificates cannot be read anew file=%s reason=%s", error.filename, error.strerror)
            self._readable = False
        return self._channels[-1]

    def _stamped(self) -> list[tuple[int, int]]:
        return [(status.st_ino, status.st_mtime_ns) for status in (path.stat() for path in self._files)]


SYSTEM: Final = "system"
"""In place of a file of authorities: those that the operating system trusts."""

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Credentials:
    """How a process recognises the scheduler, and how it says who it is. Nothing is read before it is needed.

    Attributes:
        ca_file: Certificates of authorities to trust, as PEM, or `SYSTEM`; None does without TLS.
        cert_file: The process's own certificate, as PEM, for a scheduler that asks for one.
        key_file: The key of that certificate, as PEM.
        token: The token.
        token_file: A file that holds it instead, read anew for each rpc.
        use_proxy: Dial through the proxy that `https_proxy` or `http_proxy` names. By default no proxy is used: it
            would be asked for loopback addresses, too, which are its own there.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    use_proxy: bool = False
    _of_file: FileToken = field(default_factory=FileToken, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            given, missing = ("cert", "key") if self.key_file is None else ("key", "cert")
            raise ValueError(f"tls_{missing}: must be given with tls_{given}")
        if self.cert_file is not None and self.ca_file is None:
            raise ValueError("tls_ca: must be given with tls_cert; 'system' takes the operating system's authorities")
        try:
            if self.token:
                checked_token(self.token)
        except ValueError as error:
            raise ValueError(f"token: {error}") from None

    def open_channel(self, target: str, options: Sequence[tuple[str, int | str]]) -> grpc.aio.Channel:
        """Opens a channel, which connects when it is first used. Files that have changed are read anew.

        Raises:
            OSError: A file cannot be read; its error names it.
        """
        options = (("grpc.enable_http_proxy", int(self.use_proxy)), *options)
        if self.ca_file is None:
            return grpc.aio.insecure_channel(target, options=options)
        files = [Path(file) for file in (self.ca_file, self.cert_file, self.key_file) if file and file != SYSTEM]

        def open_now() -> grpc.aio.Channel:
            return grpc.aio.secure_channel(target, self._read(), options=options)

        return RenewedChannel(open_now, files) if files else open_now()

    def _read(self) -> grpc.ChannelCredentials:
        roots = Path(self.ca_file).read_bytes() if self.ca_file not in {None, SYSTEM} else None
        key = secret_file(self.key_file).read_bytes() if self.key_file is not None else None
        chain = Path(self.cert_file).read_bytes() if self.cert_file is not None else None
        if chain is not None and (problem := why_not_valid(chain, datetime.now(UTC))) is not None:
            _log.warning("the certificate in %s is %s", self.cert_file, problem)
        return grpc.ssl_channel_credentials(roots, key, chain)

    def metadata(self) -> Metadata:
        """What each rpc carries. gRPC's own call credentials would start a thread for each.

        Raises:
            OSError: The token's file cannot be read, and never was; its error names it.
            ValueError: There is no token in it, and never was.
        """
        token = self.token
        if self.token_file is not None:
            token = self._of_file.read(self.token_file)
        return (("authorization", f"Bearer {checked_token(token)}"),) if token else ()


_HINTS: Final = (
    (
        "certificate is not yet valid",
        "the scheduler's certificate is valid from a later time on than this machine's clock says, {clock}: set the "
        "clock of this machine, or of the one that made the certificate",
    ),
    (
        "certificate has expired",
        "the scheduler's certificate was valid until an earlier time than this machine's clock says, {clock}: renew "
        "it, or set the clock",
    ),
    ("CERTIFICATE_VERIFY_FAILED", "the scheduler's certificate is not of the authorities in CALLSHEET_TLS_CA"),
    ("Hostname Verification", "the scheduler's certificate is for other names than the one that was dialled"),
    (
        "security handshaker",
        "what CALLSHEET_TLS_CA, CALLSHEET_TLS_CERT and CALLSHEET_TLS_KEY name must be certificates and a key that fit, "
        "as PEM",
    ),
    ("WRONG_VERSION_NUMBER", "the scheduler does not use TLS: do without CALLSHEET_TLS_CA"),
    *(
        (
            words,
            "if the scheduler uses TLS, name its authorities in CALLSHEET_TLS_CA, and a certificate of your own in "
            "CALLSHEET_TLS_CERT and CALLSHEET_TLS_KEY if it asks for one: of its authorities, and valid by its clock "
            "(this one says {clock})",
        )
        # A peer that speaks TLS closes other connections without a word.
        for words in ("Socket closed", "SSL", "handshake")
    ),
)


def explained(details: str) -> str:
    """What gRPC says of a connection that failed, and what to do about it where that is known."""
    hint = next((hint for words, hint in _HINTS if words in details), None)
    return details if hint is None else f"{details}; {hint.format(clock=clock_text(datetime.now(UTC)))}"
