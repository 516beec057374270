"""Text from outside as bounded plain text: what commands print, and what people and models call things. Pure.

Templates escape HTML. This takes away what else a reader's screen could be told by it: control characters, orders of
terminals, and marks that turn the direction of writing around.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MOST_CHARACTERS: Final = 4_000
MOST_LINES: Final = 400
MOST_OF_LINE: Final = 2_000
_NAME: Final = 120
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
_CUT: Final = "\N{HORIZONTAL ELLIPSIS}"
_DELETE: Final = 0x7F
_PICTURES: Final = 0x2400
# C0 but for tabs and line feeds, DEL, C1, marks of direction and other format characters, separators of lines and
# paragraphs, halves of surrogate pairs, tags, and what is no character.
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e0fff]"
)


@dataclass(frozen=True, slots=True)
class PlainText:
    """Text to show.

    Attributes:
        text: The text, which is safe in an element that keeps line breaks.
        cut: What was left out, as a sentence; empty for nothing.
    """

    text: str
    cut: str = ""


def plain_text(raw: str | bytes, *, most: int = MOST_CHARACTERS, size: int | None = None) -> PlainText:
    """Returns text of several lines as it may be shown.

    Args:
        raw: The text; bytes are taken as UTF-8, and what is none becomes U+FFFD.
        most: Characters to look at.
        size: Of what the text is the beginning, in bytes or characters; None where it is all.
    """
    whole = len(raw) if size is None else max(size, len(raw))
    # Bytes of a character that is cut apart are dropped.
    start = raw[: 4 * most].decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    start = start[:most].replace("\r\n", "\n")
    lines = start.split("\n")
    shown = [line if len(line) <= MOST_OF_LINE else line[:MOST_OF_LINE] + _CUT for line in lines[:MOST_LINES]]
    text = "\n".join(map(_visible, shown))
    complete = len(lines) <= MOST_LINES and all(len(line) <= MOST_OF_LINE for line in lines)
    if complete and whole <= (len(raw) if isinstance(raw, bytes) and len(raw) <= most else most):
        return PlainText(text)
    unit = "bytes" if isinstance(raw, bytes) else "characters"
    return PlainText(text, f"This is the beginning of {whole:,} {unit}.")


def plain_line(raw: str, most: int = _NAME) -> str:
    """Returns a name or a sentence as it may be shown in one line."""
    cut = raw[:most] + _CUT if len(raw) > most else raw
    return _visible(cut).replace("\n", "\N{SYMBOL FOR LINE FEED}").replace("\t", "\N{SYMBOL FOR HORIZONTAL TABULATION}")


def _visible(text: str) -> str:
    return _UNSEEN.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    number = ord(found[0])
    if number < 0x20:
        return chr(_PICTURES + number)
    if number == _DELETE:
        return "\N{SYMBOL FOR DELETE}"
    if 0xD800 <= number <= 0xDFFF:
        return _REPLACED
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"
