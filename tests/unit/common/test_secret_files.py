"""Files of secrets that every user of the machine may read: each reader of one warns, once."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from callsheet.credentials.channel import Credentials
from callsheet.credentials.token import read_token
from callsheet.http_server.listening import following_context
from callsheet.managers.tools.settings import KeyTable, ToolsSettings, read_secret
from callsheet.options.declaration import from_values
from callsheet.options.temporary_directories import temporary_directory
from callsheet.scheduler.service.rpc.tls import CertificateFiles

READERS: list[Callable[[Path], Any]] = [
    lambda path: read_token(str(path)),
    lambda path: Credentials(token_file=str(path)).metadata(),
    lambda path: from_values(ToolsSettings, {"quota_redis_file": path}),
    lambda path: read_secret("k", KeyTable(file=str(path))),
    lambda path: following_context(path, path),
    lambda path: CertificateFiles(path, path, None).credentials(),
    lambda path: Credentials(str(path), str(path), str(path)).open_channel("127.0.0.1:1", ()),
]


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user may enter, as all above it."""
    with temporary_directory("callsheet-secrets-") as place:
        place.chmod(0o1755)
        yield place


@pytest.mark.parametrize("read", READERS)
def test_a_file_that_everybody_may_read_is_named_once(
    open_place: Path, caplog: pytest.LogCaptureFixture, read: Callable[[Path], Any]
) -> None:
    told, kept, behind = open_place / "told", open_place / "kept", open_place / "closed" / "behind"
    behind.parent.mkdir(mode=0o700)
    for path, mode in ((told, 0o644), (kept, 0o640), (behind, 0o644)):
        path.write_text("secret-word")
        path.chmod(mode)
    with caplog.at_level(logging.WARNING, logger="callsheet.credentials"):
        for path in (told, kept, behind, told):
            # The file holds no key, and no loop runs.
            with suppress(ssl.SSLError, ValueError, RuntimeError):
                read(path)
    (warning,) = [each.getMessage() for each in caplog.records if "every user" in each.getMessage()]
    assert str(told) in warning
    assert "secret-word" not in warning
