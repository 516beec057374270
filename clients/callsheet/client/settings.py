"""Settings of a client: everything that is not an address."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from functools import partial
from numbers import Integral
from typing import Any, Final

from callsheet.client.codec.fields import is_number
from callsheet.client.errors import invalid
from callsheet.client.words.arguments import instance, optional
from callsheet.credentials.channel import SYSTEM, Credentials
from callsheet.credentials.token import checked_token

_GATEWAY_RULE: Final = "a URL that begins with http:// or https://"
_SECONDS: Final = (
    "connect_timeout_s",
    "give_up_after_s",
    "backoff_initial_s",
    "backoff_max_s",
    "call_timeout_s",
    "close_timeout_s",
)


@dataclass(frozen=True, slots=True)
class Tls:
    """Encryption of the connection.

    Attributes:
        ca_file: Certificates of authorities to trust, as PEM; None takes the system's.
        cert_file: The client's own certificate, as PEM.
        key_file: The key of that certificate, as PEM.

    Raises:
        InvalidArgumentError: `cert_file` or `key_file` is given without the other.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise invalid("tls", self, "cert_file and key_file go together")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of a client's connections and waits. Times are in seconds.

    Attributes:
        connect_timeout_s: The longest wait for the first connection. Then waiting calls fail with ConnectionLostError.
        give_up_after_s: The longest time without a connection after one was lost. Then open work fails with
            ConnectionLostError.
        backoff_initial_s: Ceiling of the wait before the first reconnect; it doubles with each further reconnect.
        backoff_max_s: Highest ceiling of the wait.
        call_timeout_s: Deadline of a unary call.
        close_timeout_s: The longest wait for the scheduler at the close of a client or a trajectory.
        outbox_items: The most items that wait to be written; beyond them callers wait.
        channel_options: gRPC channel options that override the client's own.
        tls: Encryption of the connection; None means no encryption.
        token: The client's identity, for schedulers with tokens.
        token_file: A file with the token, used instead of `token`. The client reads the file again for each connection
            and call, so the token may change during a long job. Pickles have the path of the file; options with
            `token` and no file do not pickle.
        gateway: URL of the gateway for agents; None takes http://127.0.0.1:7078.
        use_proxy: Reach scheduler and gateway through the proxy of `https_proxy` or `http_proxy`, except the hosts of
            `no_proxy`. By default proxy variables are ignored.

    Raises:
        InvalidArgumentError: A number is out of its range, or the text cannot be a token.
    """

    connect_timeout_s: float = 10.0
    give_up_after_s: float = 600.0
    backoff_initial_s: float = 0.05
    backoff_max_s: float = 5.0
    call_timeout_s: float = 30.0
    close_timeout_s: float = 5.0
    outbox_items: int = 16_384
    channel_options: tuple[tuple[str, int | str], ...] = ()
    tls: Tls | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    gateway: str | None = None
    use_proxy: bool = False
    _credentials: Credentials = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Checks the ranges."""
        for name in _SECONDS:
            value = getattr(self, name)
            if not (is_number(value) and value > 0):
                raise invalid(name, value, "seconds above 0")
        if not (isinstance(self.outbox_items, Integral) and self.outbox_items >= 1):
            raise invalid("outbox_items", self.outbox_items, "a whole number, at least 1")
        optional("tls", self.tls, Tls, "a Tls")
        if self.token is not None and not isinstance(self.token, str):
            raise invalid("token", type(self.token).__name__, "text, or None")
        optional("token_file", self.token_file, str, "a path as text")
        optional("gateway", self.gateway, str, _GATEWAY_RULE)
        instance("use_proxy", self.use_proxy, bool, "True or False")
        if self.gateway and not self.gateway.startswith(("http://", "https://")):
            raise invalid("gateway", self.gateway, _GATEWAY_RULE)
        try:
            if self.token:
                checked_token(self.token)
        except ValueError as error:
            raise invalid("token", "", str(error)) from None
        object.__setattr__(self, "_credentials", self._make_credentials())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the path of a token, and no token, because pickles end up in stores and logs.

        Raises:
            InvalidArgumentError: The token is in no file.
        """
        if self.token and self.token_file is None:
            raise invalid("token", "", "is not pickled: name its file, by token_file or CALLSHEET_TOKEN_FILE")
        state = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        path = os.path.abspath(self.token_file) if self.token_file is not None else None
        return partial(ClientOptions, **state | {"token": None, "token_file": path}), ()

    def __deepcopy__(self, _: object) -> ClientOptions:
        """Returns itself: it never changes."""
        return self

    @property
    def credentials(self) -> Credentials:
        """The form of channels, and the metadata of each rpc."""
        return self._credentials

    def _make_credentials(self) -> Credentials:
        if self.tls is None:
            return Credentials(token=self.token, token_file=self.token_file, use_proxy=self.use_proxy)
        files = (self.tls.ca_file or SYSTEM, self.tls.cert_file, self.tls.key_file)
        return Credentials(*files, self.token, self.token_file, self.use_proxy)
