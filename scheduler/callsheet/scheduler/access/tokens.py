"""Tokens: made, kept as hashes in a file that schedulers read, and checked."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from callsheet.scheduler.access.identity import OF_ONE_SUBJECT, Identity, Scope, unauthenticated

PREFIX: Final = "callsheet"
ID_BYTES: Final = 6
SECRET_BYTES: Final = 32
"""256 random bits: nobody can try them all, so one round of SHA-256 is hash enough."""

MAX_LIFETIME_S: Final = 100 * 365.0 * 24 * 3600
"""Beyond it an end is no date that can be shown."""

_HINT: Final = "an administrator makes one with `callsheet token issue`"


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """Record of a token. Times are seconds since the epoch.

    Attributes:
        token_id: Its public part.
        digest: SHA-256 of its secret part, in hexadecimal digits.
        expires_at: None if it does not expire.
        revoked_at: None while it is valid.
        publishes: Services that its job may publish weights for, and jobs without them may not.
    """

    token_id: str
    scope: Scope
    subject: str
    digest: str
    issued_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    publishes: tuple[str, ...] = ()

    def valid(self, now: float) -> bool:
        """Returns whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def issue_token(
    scope: Scope,
    subject: str,
    *,
    random: bytes,
    now: float,
    lifetime_s: float | None = None,
    publishes: Sequence[str] = (),
) -> tuple[str, TokenRecord]:
    """Makes a token.

    Args:
        scope: What its bearer may do.
        subject: The one job or manager it is for, where its scope is of one.
        random: `ID_BYTES + SECRET_BYTES` bytes that nobody can guess.
        now: Seconds since the epoch.
        lifetime_s: None makes one that does not expire.
        publishes: Services that the job may publish weights for.

    Returns:
        The token itself, which is to be found nowhere else from now on, and its record.

    Raises:
        ValueError: A subject is missing, or there is one too many; the lifetime is not above 0, or too long; services
            are named for what is no job, or one is empty.
    """
    if publishes and (scope is not Scope.JOB or not all(publishes)):
        raise ValueError(f"publishes: names services, for scope 'job' alone, got {list(publishes)} for {scope.value!r}")
    if (scope in OF_ONE_SUBJECT) != bool(subject):
        needs = f"takes the id of one {scope.value}" if scope in OF_ONE_SUBJECT else "takes no id"
        raise ValueError(f"scope: {scope.value!r} {needs}, got {subject!r}")
    if lifetime_s is not None and not 0 < lifetime_s <= MAX_LIFETIME_S:
        rule = f"must be above 0 s and at most {MAX_LIFETIME_S:.0f} s; without one a token is valid until it is revoked"
        raise ValueError(f"lifetime: {rule}, got {lifetime_s}")
    token_id, secret = random[:ID_BYTES].hex(), random[ID_BYTES:].hex()
    expires_at = None if lifetime_s is None else now + lifetime_s
    record = TokenRecord(token_id, scope, subject, _digest(secret), now, expires_at, publishes=tuple(publishes))
    return f"{PREFIX}_{token_id}_{secret}", record


def identify(token: str, records: Mapping[str, TokenRecord], now: float) -> Identity:
    """Returns whose token it is.

    Args:
        token: As it was presented.
        records: The kept tokens, by id.
        now: Seconds since the epoch.

    Raises:
        RefusedError: UNAUTHENTICATED: it is none, or none of these, or revoked, or expired.
    """
    prefix, _, rest = token.partition("_")
    token_id, _, secret = rest.partition("_")
    record = records.get(token_id)
    # What is compared does not depend on whether there is such a token.
    matches = hmac.compare_digest(_digest(secret), record.digest if record is not None else _digest(""))
    if prefix != PREFIX or record is None or not matches or not secret:
        raise unauthenticated(f"is no token of this scheduler; {_HINT}")
    check_valid(record, now)
    return Identity(record.scope, record.subject, record.token_id, frozenset(record.publishes))


def reserved_services(records: Mapping[str, TokenRecord], now: float) -> frozenset[str]:
    """The services that valid tokens name for publishing."""
    return frozenset(name for each in records.values() if each.publishes and each.valid(now) for name in each.publishes)


def revoked(record: TokenRecord, now: float) -> TokenRecord:
    """The record of a token that is valid no longer; of one that was revoked before, as it is."""
    return record if record.revoked_at is not None else replace(record, revoked_at=now)


def check_valid(record: TokenRecord | None, now: float) -> None:
    """Checks that a token that was right once still is.

    Raises:
        RefusedError: UNAUTHENTICATED: it was removed or revoked, or has expired.
    """
    if record is None or record.revoked_at is not None:
        raise unauthenticated(f"is a token that was revoked; {_HINT}")
    if record.expires_at is not None and now >= record.expires_at:
        raise unauthenticated(f"is a token that has expired; {_HINT}")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
