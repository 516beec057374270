"""Makes texts of others harmless to a user's terminal. Pure.

A terminal obeys control characters: they move the cursor, overwrite what stands there, set the clipboard, or answer
as if the user had typed. Characters that turn the direction of writing make a text look like another one.
"""

from __future__ import annotations

import re
from typing import Final

# C0 but for tab and newline, DEL, C1, separators of lines, the marks that override and isolate directions, and halves
# of surrogate pairs, which no encoding takes.
_ORDERS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_LAYOUT: Final = re.compile("[\t\n]")


def visible(text: str) -> str:
    """Returns a text in which what a terminal would obey is written as a JSON escape, for instance \\u001b.

    Newlines and tabs stay; the carriage return before a newline goes.
    """
    return _ORDERS.sub(_escape, text.replace("\r\n", "\n"))


def visible_line(text: str) -> str:
    """Returns `visible` text that stays on one line: newlines and tabs are escapes, too."""
    return _LAYOUT.sub(_escape, visible(text))


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
