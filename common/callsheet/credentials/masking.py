"""Takes secrets out of texts before anybody may read them: answers of servers, errors, logs. Pure."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from functools import reduce
from typing import Final
from urllib.parse import quote

HIDDEN: Final = "***"
REDIS_URL_RULE: Final = "must be redis://, rediss:// or unix://, with special characters of its password written as %NN"
"""For errors in place of those of the library, which show what is behind a slash in a password."""
_SHORTEST: Final = 8
# In URLs: whatever is in front of the last "@" before the path, since passwords hold such signs and quotes as well; and
# parameters that are known to hold secrets.
_IN_URLS: Final = re.compile(
    r"(://)[^\s/]+(?=@)"
    r"|([?&](?:api[_-]?key|(?:(?:access|auth|refresh|id)_)?token|password|passwd|secret|sig|signature)=)[^\s?&#'\"]+",
    re.IGNORECASE,
)


class Mask:
    """Replaces secrets by three stars, in all forms in which servers send back what they were sent."""

    def __init__(self, *secrets: str) -> None:
        """Takes the secrets; of one with spaces each word that is as long as a secret."""
        words = {word for secret in secrets for word in secret.split() if len(word) >= _SHORTEST}
        self._forms = sorted({form.encode() for word in words for form in _forms(word)}, key=len, reverse=True)
        self.longest = max(map(len, self._forms), default=0)
        """Bytes to read of a text beyond the point at which `content` cuts it."""

    def __call__(self, text: str) -> str:
        """Returns a text without the secrets."""
        return self.content(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def content(self, content: bytes, most: int | None = None) -> bytes:
        """Returns bytes without the secrets, nor with the beginning of one at their end if they are cut.

        Args:
            content: The bytes.
            most: How many to return at most; None for all.
        """
        masked = reduce(lambda left, form: left.replace(form, HIDDEN.encode()), self._forms, content)
        if most is None or len(content) <= most:
            return masked
        ends = (size for size in range(self.longest, 0, -1) for form in self._forms if form.startswith(masked[-size:]))
        return masked[: len(masked) - next(ends, 0)][:most]


def without_credentials(text: str) -> str:
    """Returns a text for a log or an error; its URLs show neither user nor password, nor parameters with secrets."""
    return _IN_URLS.sub(lambda found: f"{found[1] or found[2]}{HIDDEN}", text)


def _forms(word: str) -> Iterator[str]:
    yield from (word, in_json := json.dumps(word)[1:-1], in_json.replace("/", r"\/"))
    yield from (in_html := html.escape(word), in_html.replace("/", "&#x2F;"))
    for quoted in (quote(word), quote(word, safe="")):
        yield from (quoted, re.sub("%..", lambda found: found[0].lower(), quoted))
    # JSON that is safe within HTML, as Go and .NET write it.
    for special, code in (("[<>&]", "\\u{:04x}"), ("[<>&'+`]", "\\u{:04X}")):
        yield re.sub(special, lambda found, code=code: code.format(ord(found[0])), in_json)  # type: ignore[misc]
    for before in range(3):
        # Only what the word alone decides: its bits may begin and end within a character.
        bits = 8 * (before + len(word.encode()))
        encoded = base64.b64encode(bytes(before) + word.encode()).decode()[-(-8 * before // 6) : bits // 6]
        yield from (encoded, encoded.translate({43: "-", 47: "_"}))
