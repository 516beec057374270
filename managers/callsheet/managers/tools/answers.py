"""The answer of a provider, and the problems that it reports with the key of its request. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from callsheet.credentials.masking import Mask
from callsheet.managers.models.completions import message_of
from callsheet.managers.tools.errors import INFRA, ToolFailedError

REFUSED, PAY_FIRST, FORBIDDEN, TOO_MANY = 401, 402, 403, 429

FAILED = 400

_NO_MONEY = (b"insufficient_quota", b"insufficient_balance", b"billing_hard_limit_reached")

# Says that a key is bad, and not that it may not do what was asked for.
_KEYS = r"(?:(?:api|access|auth|bearer|subscription)[ -]?(?:key|token)|credential|authentication)"

_BAD_KEY = re.compile(
    rf"\b(?:in(?:valid|correct)|expired|revoked|missing|bad|wrong|unknown|disabled|malformed|no)\W(?:\w+\W){{0,2}}?{_KEYS}"
    rf"|\b{_KEYS}s?\W+(?:\w+\W){{0,4}}?"
    r"(?:in(?:valid|correct)|expired|revoked|missing|wrong|disabled|not (?:valid|found|active|provided|known))\b",
    re.IGNORECASE,
)


def key_problem(answer: ProviderAnswer, key: SentKey) -> ToolFailedError | None:
    """Returns what an answer holds against the key, rather than against the request that a model made; None if nothing.

    Args:
        answer: The answer, of an address that is sent the key.
        key: The key that was sent, if one was.
    """
    if answer.status < FAILED:
        return None
    words = key.mask(f"HTTP {answer.status}: {message_of(answer.content)}")
    if answer.status == PAY_FIRST or (
        answer.status in {TOO_MANY, FORBIDDEN} and any(code in answer.body for code in _NO_MONEY)
    ):
        return ToolFailedError(INFRA, "insufficient_quota", f"the provider asks for payment: {words}")
    is_bad = "invalid_token" in answer.headers.get("www-authenticate", "") or _BAD_KEY.search(words.replace("_", " "))
    if not key.name or not (answer.status == REFUSED or (answer.status == FORBIDDEN and is_bad)):
        return None
    return ToolFailedError(INFRA, "key_refused", f"the API refuses key {key.name!r}: {words}")


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """An answer without the manager's secrets.

    Attributes:
        status: The HTTP status.
        headers: Its headers, found in any case of their names.
        body: The beginning of its body, up to the bound, as it was sent.
        truncated: Whether there was more.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool

    @property
    def content(self) -> Any:
        """Its JSON; the text if it has none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return self.body.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class SentKey:
    """A key as an API is sent it.

    Attributes:
        name: Of the key; empty for none.
        headers: What carries it.
        mask: Takes all keys of the manager out of answers.
    """

    name: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    mask: Mask = field(default_factory=Mask, repr=False)
