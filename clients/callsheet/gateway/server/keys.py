"""Keys of trajectories: all that a black box needs, and all that it may do. Pure: time and secret are parameters.

A key is a payload and a signature of it by a secret that only gateways of one database know. It names its trajectory,
so nothing is stored for it; it lets its bearer generate there, and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass, field
from typing import Any, Final

PREFIX: Final = "cs-"
SECRET_BYTES: Final = 32
MAX_LIFETIME_S: Final = 30 * 86_400.0

_RULES: Final[dict[str, tuple[tuple[type, ...], Any, str]]] = {
    "temperature": ((int, float), lambda value: 0 <= value < float("inf"), "a number of at least 0"),
    "top_p": ((int, float), lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "top_k": ((int,), lambda value: value >= 0, "a whole number of at least 0"),
    "max_tokens": ((int,), lambda value: value >= 1, "a whole number of at least 1"),
}


class KeyRefusedError(Exception):
    """The presented text is no key, or an expired one; the message repeats nothing of it."""


@dataclass(frozen=True, slots=True)
class ForcedSampling:
    """How a trainer wants its trajectory sampled, whatever the harness asks for; None forces nothing.

    Attributes:
        temperature: At least 0.
        top_p: Above 0 and at most 1.
        top_k: At least 0; 0 means all.
        max_tokens: The most new tokens of a call; a call that asks for fewer gets fewer.

    Raises:
        ValueError: A number is out of its range.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, (kinds, holds, rule) in _RULES.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or not holds(value)):
                raise ValueError(f"sampling.{name}: {value!r:.100}: must be {rule}")


@dataclass(frozen=True, slots=True)
class TrajectoryKey:
    """Content of a key.

    Attributes:
        job_id: The job.
        life: Which of those that had the id; empty where that was not known.
        trajectory_id: Its trajectory.
        expires_at: When it ends, in seconds since 1970.
        sampling: What the trainer forces.
        token_id: The public part of the token that it was issued to, which it ends with; empty without tokens.
    """

    job_id: str
    life: str
    trajectory_id: str
    expires_at: float
    sampling: ForcedSampling = field(default_factory=ForcedSampling)
    token_id: str = ""


def write_key(key: TrajectoryKey, secret: bytes) -> str:
    """Returns a key as text that fits into a header and a path."""
    sampling = {name: value for name in _RULES if (value := getattr(key.sampling, name)) is not None}
    named: dict[str, Any] = {"j": key.job_id, "l": key.life, "t": key.trajectory_id, "x": key.expires_at}
    named |= ({"s": sampling} if sampling else {}) | ({"k": key.token_id} if key.token_id else {})
    payload = _encode(json.dumps(named, separators=(",", ":")).encode())
    return f"{PREFIX}{payload}.{_encode(_signature(payload, secret))}"


def read_key(text: str, secret: bytes, now: float) -> TrajectoryKey:
    """Returns what a key says.

    Args:
        text: As it was presented.
        secret: Of the gateways.
        now: Seconds since 1970.

    Raises:
        KeyRefusedError: It is no key of these gateways, or has expired.
    """
    payload, _, signature = text.removeprefix(PREFIX).partition(".")
    try:
        given = _decode(signature)
    except ValueError:
        given = b""
    if not is_key(text) or not hmac.compare_digest(given, _signature(payload, secret)):
        raise KeyRefusedError("is no key of this gateway")
    said: Any = json.loads(_decode(payload))
    if now >= said["x"]:
        raise KeyRefusedError("is a key that has expired; its trainer issues another")
    return TrajectoryKey(
        said["j"], said.get("l", ""), said["t"], said["x"], ForcedSampling(**said.get("s", {})), said.get("k", "")
    )


def is_key(text: str) -> bool:
    """Returns whether a text looks like a key, so that nobody need be asked whether it is a token."""
    return text.startswith(PREFIX) and "." in text


def _signature(payload: str, secret: bytes) -> bytes:
    return hmac.digest(secret, f"callsheet trajectory key\n{payload}".encode("utf-8", "replace"), hashlib.sha256)


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("no base64") from error
