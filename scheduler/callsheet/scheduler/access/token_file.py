"""The file with the hashes of tokens. Schedulers read it while `callsheet token` may write it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from callsheet.options.private_files import make_private_directory, write_private_file
from callsheet.scheduler.access.identity import Scope
from callsheet.scheduler.access.tokens import TokenRecord
from filelock import FileLock, Timeout

LOCK_TIMEOUT_S: Final = 10.0
_VERSION: Final = 1


class TokenFileError(Exception):
    """The file of tokens cannot be used; the message names it and says why."""


class TokenFile:
    """Records of tokens by id, read anew when the file has changed.

    Attributes:
        path: The file; readable for its owner alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int, int] | None = None
        self._records: Mapping[str, TokenRecord] = {}

    def records(self) -> Mapping[str, TokenRecord]:
        """Returns the records of the file; none if there is no file.

        Raises:
            TokenFileError: It cannot be read, or is no such file.
        """
        try:
            status = self.path.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                self._records, self._stamp = _parsed(self.path.read_bytes()), stamp
        except FileNotFoundError:
            self._records, self._stamp = {}, None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TokenFileError(f"{self.path}: cannot be read as a file of tokens: {error}") from error
        return self._records

    def change(self, change: Callable[[dict[str, TokenRecord]], None]) -> None:
        """Changes the records, and writes them as a whole: a reader sees the old file or the new one.

        Raises:
            TokenFileError: It cannot be read or written, or another process keeps changing it.
        """
        with self._locked():
            records = dict(self.records())
            change(records)
            try:
                _replace(self.path, records)
            except OSError as error:
                raise TokenFileError(f"{self.path}: cannot be written: {error}") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            make_private_directory(self.path.parent)
            with FileLock(f"{self.path}.lock", timeout=LOCK_TIMEOUT_S, mode=0o600):
                yield
        except Timeout as error:
            raise TokenFileError(f"{self.path}: another process has it locked") from error
        except OSError as error:
            raise TokenFileError(f"{self.path}: cannot be locked: {error}") from error


def _parsed(content: bytes) -> dict[str, TokenRecord]:
    found: Any = json.loads(content)
    if found["version"] != _VERSION:
        raise ValueError(f"its version is {found['version']!r}, this scheduler reads {_VERSION}")
    records = (
        TokenRecord(**{**each, "scope": Scope(each["scope"]), "publishes": tuple(each.get("publishes", ()))})
        for each in found["tokens"]
    )
    return {record.token_id: record for record in records}


def _replace(path: Path, records: Mapping[str, TokenRecord]) -> None:
    # Schedulers of before this field take the file as long as no token has it.
    tokens = [
        {name: each for name, each in asdict(record).items() if name != "publishes" or each}
        | {"scope": record.scope.value}
        for record in records.values()
    ]
    write_private_file(path, json.dumps({"version": _VERSION, "tokens": tokens}, indent=1))
