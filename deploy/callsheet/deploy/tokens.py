"""Operations of `callsheet token` on a file of tokens."""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from callsheet.options.private_files import make_private_directory, write_private_file
from callsheet.scheduler.access.audit import append_lines, audit_line
from callsheet.scheduler.access.identity import Scope
from callsheet.scheduler.access.token_file import TokenFile, TokenFileError
from callsheet.scheduler.access.tokens import ID_BYTES, PREFIX, SECRET_BYTES, TokenRecord, issue_token, revoked

__all__ = ["SCOPES", "TokenFileError", "issue", "listed", "revoke"]

_log = logging.getLogger(__name__)
SCOPES = tuple(scope.value for scope in Scope)
"""Scopes that a token may have."""


def issue(
    path: Path,
    scope: str,
    subject: str,
    lifetime_s: float | None = None,
    publishes: Sequence[str] = (),
    *,
    out: Path | None = None,
) -> str:
    """Makes a token that schedulers with this file know from now on, and returns it.

    Args:
        path: The file of tokens.
        scope: What it is for, one of `SCOPES`.
        subject: The job or manager.
        lifetime_s: Seconds for which it is valid; None for no end.
        publishes: Services for whose engines the job alone publishes.
        out: A file to write it to, for its owner alone: a new file, or one with a token, which is replaced.

    Raises:
        ValueError: The scope is none, its subject is missing or there is one too many, the lifetime is not above 0, or
            services are named for what is no job.
        TokenFileError: The file cannot be used, or `out` is a link, holds something else or cannot be written.
    """
    if scope not in SCOPES:
        raise ValueError(f"scope: {scope!r} is none of {', '.join(SCOPES)}")
    if out is not None and os.path.lexists(out):
        if out.is_symlink() or not out.is_file():
            raise TokenFileError(f"out: {out}: must be a new file, or a regular one with a token")
        _kept_token_id(out)
    chance = secrets.token_bytes(ID_BYTES + SECRET_BYTES)
    token, record = issue_token(
        Scope(scope), subject, random=chance, now=time.time(), lifetime_s=lifetime_s, publishes=publishes
    )
    TokenFile(path).change(lambda records: records.update({record.token_id: record}))
    named = {"publishes": ", ".join(publishes)} if publishes else {}
    _note(path, "issue", record.token_id, of_scope=scope, of_subject=subject, **named)
    try:
        if out is not None:
            write_private_file(out, f"{token}\n")
    except OSError as error:
        revoke(path, record.token_id)
        raise TokenFileError(f"out: {out}: cannot be written: {error}") from error
    return token


def token_path(data_dir: Path, name: str) -> Path:
    """Returns the file in which a stack keeps the token of a manager, by role, or of "admin" for commands."""
    return data_dir / "tokens" / f"{name}.token"


def issue_for_stack(path: Path, data_dir: Path, manager_ids: Mapping[str, str], gateway: str = "") -> None:
    """Gives a stack's managers tokens of their own, and its user one of an administrator; former ones of it end.

    Args:
        path: The scheduler's file of tokens.
        data_dir: The stack's.
        manager_ids: Ids of its managers, by role.
        gateway: The role of its gateway; empty if it has none.

    Raises:
        TokenFileError: The file cannot be used, or a file that keeps a former token is damaged.
        OSError: A token cannot be written.
    """
    wanted = {"admin": (Scope.ADMIN, ""), **{role: (Scope.MANAGER, each) for role, each in manager_ids.items()}}
    if gateway:
        wanted[gateway] = (Scope.GATEWAY, "")
    for name, (scope, subject) in wanted.items():
        renew_kept(path, token_path(data_dir, name), scope.value, subject)


def renew_kept(path: Path, kept: Path, scope: str, subject: str) -> str:
    """Makes a token, keeps it in a file, and returns it; the one that the file kept ends.

    Raises:
        TokenFileError: The scheduler's file cannot be used, or the file that keeps a former token is damaged.
        OSError: It cannot be written.
    """
    end_kept(path, kept)
    token = issue(path, scope, subject)
    make_private_directory(kept.parent)
    write_private_file(kept, token)
    return token


def end_kept(path: Path, kept: Path) -> None:
    """Ends the token that a file keeps, and removes the file. Nothing if there is no such file.

    Raises:
        TokenFileError: The scheduler's file cannot be used, or the one that keeps the token is damaged.
    """
    former = _kept_token_id(kept)
    if former:
        TokenFile(path).change(lambda records: records.pop(former, None))  # type: ignore[arg-type]
        kept.unlink(missing_ok=True)
        _note(path, "revoke", former)


def _kept_token_id(kept: Path) -> str:
    """The public part of the token that a file keeps; empty if there is no such file."""
    if not kept.exists():
        return ""
    found = re.fullmatch(rf"{PREFIX}_([0-9a-f]+)_[0-9a-f]+\s*", kept.read_text(encoding="utf-8", errors="replace"))
    if found is None:
        raise TokenFileError(
            f"{kept}: holds no token. Remove it, and a new one is issued; the one that was there is valid until "
            "`callsheet token revoke` ends it"
        )
    return found[1]


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
    _note(path, "revoke", token_id)


def _note(path: Path, act: str, token_id: str, **more: str) -> None:
    """Writes what was done into the audit beside the tokens; where that cannot be it is done all the same, and told."""
    facts = {"scope": "user", "subject": str(os.geteuid()), "peer": f"process {os.getpid()}", "of_token": token_id}
    try:
        append_lines(
            path.with_suffix(".audit.jsonl"), [audit_line(act, time.time(), {**facts, **more, "result": "OK"})]
        )
    except OSError as error:
        _log.warning("the audit of %s lacks the %s of token %s: %s", path, act, token_id, error)


def listed(path: Path) -> Sequence[TokenRecord]:
    """The tokens that were issued, oldest first; without their secrets, which nobody has.

    Raises:
        TokenFileError: The file cannot be used.
    """
    return sorted(TokenFile(path).records().values(), key=lambda record: record.issued_at)
