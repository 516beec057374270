"""The token of a process: checked before gRPC sees it, and read again when its file changes."""

from __future__ import annotations

import logging

from callsheet.credentials.secret_files import secret_file

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
    """Returns why a file gave no token, without any of its text."""
    if isinstance(error, OSError):
        return f"it cannot be read: {error.strerror}"
    return "it is no text" if isinstance(error, UnicodeDecodeError) else f"it {error}"


class FileToken:
    """A token in a file. One that was read is good until the file holds another: it may be on its way just now."""

    def __init__(self) -> None:
        self._token: str | None = None
        self._readable = True

    def read(self, path: str) -> str:
        """Returns the content of the file, or the last one if it cannot be read; that is logged once.

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
