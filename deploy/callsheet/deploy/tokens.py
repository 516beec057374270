"""What `callsheet token` does to a file of tokens."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from callsheet.scheduler.access.identity import Scope
from callsheet.scheduler.access.token_file import TokenFile, TokenFileError
from callsheet.scheduler.access.tokens import ID_BYTES, SECRET_BYTES, TokenRecord, issue_token, revoked

__all__ = ["SCOPES", "TokenFileError", "issue", "listed", "revoke"]

SCOPES = tuple(scope.value for scope in Scope)
"""What a token may be for."""


def issue(path: Path, scope: str, subject: str, lifetime_s: float | None = None) -> str:
    """Makes a token that schedulers with this file know from now on, and returns it.

    Raises:
        ValueError: The scope is none, its subject is missing or there is one too many, or the lifetime is not above 0.
        TokenFileError: The file cannot be used.
    """
    if scope not in SCOPES:
        raise ValueError(f"scope: {scope!r} is none of {', '.join(SCOPES)}")
    chance = secrets.token_bytes(ID_BYTES + SECRET_BYTES)
    token, record = issue_token(Scope(scope), subject, random=chance, now=time.time(), lifetime_s=lifetime_s)
    TokenFile(path).change(lambda records: records.update({record.token_id: record}))
    return token


def token_path(data_dir: Path, name: str) -> Path:
    """Where a stack keeps the token of one of its managers, by role, or "admin" for commands."""
    return data_dir / "tokens" / f"{name}.token"


def issue_for_stack(path: Path, data_dir: Path, manager_ids: Mapping[str, str]) -> None:
    """Gives a stack's managers tokens of their own, and its user one of an administrator; former ones of it end.

    Args:
        path: The scheduler's file of tokens.
        data_dir: The stack's.
        manager_ids: Ids of its managers, by role.

    Raises:
        TokenFileError: The file cannot be used.
        OSError: A token cannot be written.
    """
    wanted = {"admin": (Scope.ADMIN, ""), **{role: (Scope.MANAGER, each) for role, each in manager_ids.items()}}
    token_path(data_dir, "").parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, (scope, subject) in wanted.items():
        kept = token_path(data_dir, name)
        former = kept.read_text().split("_")[1] if kept.exists() else ""
        TokenFile(path).change(lambda records, former=former: records.pop(former, None))  # type: ignore[misc]
        with open(os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(issue(path, scope.value, subject))


def revoke(path: Path, token_id: str) -> None:
    """Ends a token: streams that were opened with it end within seconds.

    Raises:
        LookupError: There is none of this id.
        TokenFileError: The file cannot be used.
    """

    def change(records: dict[str, TokenRecord]) -> None:
        if token_id not in records:
            raise LookupError(f"token: {token_id!r} is no id of {path}; callsheet token list shows them")
        records[token_id] = revoked(records[token_id], time.time())

    TokenFile(path).change(change)


def listed(path: Path) -> Sequence[TokenRecord]:
    """The tokens that were issued, oldest first; without their secrets, which nobody has.

    Raises:
        TokenFileError: The file cannot be used.
    """
    return sorted(TokenFile(path).records().values(), key=lambda record: record.issued_at)
