"""What commands print and models write never reaches a reader's screen as anything but text."""

from __future__ import annotations

import unicodedata

import pytest
from callsheet.dashboard.plain_text import MOST_CHARACTERS, MOST_LINES, MOST_OF_LINE, plain_line, plain_text

_KEPT = {"\n", "\t"}


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("a\tb\nc", "a\tb\nc"),
        ("a\r\nb", "a\nb"),
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("\x9b31m", "\\u009b31m"),
        ("a\x00b", "a␀b"),
        ("a\x7fb", "a␡b"),
        ("progress\r100%", "progress␍100%"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\u2066b\u2069", "a\\u2066b\\u2069"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\ufeffmark", "\\ufeffmark"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("half\ud800", "half\ufffd"),
        ("line\u2028separated", "line\\u2028separated"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("日本語 é 😀", "日本語 é 😀"),
        (b"broken \xff\xfe utf-8", "broken \ufffd\ufffd utf-8"),
        (b"cut \xe6\x97", "cut \ufffd"),
        (b"esc \x1b[2J", "esc ␛[2J"),
        ("", ""),
    ],
)
def test_what_a_terminal_would_obey_is_made_visible(raw: str | bytes, shown: str) -> None:
    found = plain_text(raw)
    assert found.text == shown
    assert not found.cut


def test_no_character_that_is_not_seen_is_left() -> None:
    text = "".join(map(chr, [*range(0x3000), *range(0xD7F0, 0xE010), *range(0xFE00, 0x10000), 0xE0001, 0xE007F]))
    found = plain_text(text, most=len(text)).text
    # What has no width of its own belongs to the character before it.
    left = {each for each in found if unicodedata.category(each) in {"Cc", "Cf", "Cs", "Zl", "Zp"}} - _KEPT
    assert left <= {chr(each) for each in (*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2)}, left


@pytest.mark.parametrize("raw", [b"x" * 10_000_000, "x" * 10_000_000, b"\xff" * 10_000_000, "\x1b" * 10_000_000])
def test_a_line_of_ten_megabytes_is_cut_and_its_size_is_told(raw: str | bytes) -> None:
    found = plain_text(raw)
    assert len(found.text) <= MOST_OF_LINE + 1
    assert "10,000,000" in found.cut


def test_many_lines_are_cut() -> None:
    found = plain_text("\n" * 100_000)
    assert found.text.count("\n") == MOST_LINES - 1
    assert "100,000 characters" in found.cut
    assert len(plain_text("ab\n" * MOST_CHARACTERS).text) <= MOST_CHARACTERS


def test_a_beginning_says_of_how_much_it_is_one() -> None:
    assert plain_text(b"abc", size=7000).cut == "This is the beginning of 7,000 bytes."
    assert not plain_text("é" * 100).cut
    assert not plain_text(("é" * MOST_CHARACTERS)[:MOST_OF_LINE].encode()).cut


def test_a_name_is_one_line() -> None:
    assert plain_line("a\nb\tc\x1b") == "a␊b␉c␛"
    assert plain_line("n" * 300, 5) == "nnnnn…"
