"""What browsers are sent beside pages: small, as it was vetted, with licences, and within the policy."""

from __future__ import annotations

import hashlib
import re

from callsheet.dashboard.pages import HERE

_VENDORED = {
    "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",  # htmx.org 2.0.11
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",  # uplot 1.6.32
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
_MOST_BYTES = 200_000


def test_vendored_files_are_those_that_were_vetted() -> None:
    static = HERE / "static"
    for name, digest in _VENDORED.items():
        assert hashlib.sha256((static / name).read_bytes()).hexdigest() == digest, name
    assert "Zero-Clause BSD" in (static / "htmx.LICENSE").read_text()
    assert "MIT License" in (static / "uPlot.LICENSE").read_text()


def test_all_that_browsers_are_sent_is_small() -> None:
    files = [path for path in (HERE / "static").iterdir() if path.suffix != ".LICENSE"]
    templates = list((HERE / "templates").iterdir())
    assert sum(path.stat().st_size for path in (*files, *templates)) < _MOST_BYTES


def test_no_page_brings_script_style_or_addresses_of_its_own() -> None:
    for path in (HERE / "templates").iterdir():
        text = path.read_text()
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|https?://", text), path.name
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text)), path.name
    page = (HERE / "templates" / "page.html").read_text()
    assert '"allowEval":false' in page
    assert '"includeIndicatorStyles":false' in page


def test_our_scripts_evaluate_nothing_and_call_nobody() -> None:
    for name in ("dashboard.js", "gantt.js"):
        text = (HERE / "static" / name).read_text()
        assert not re.search(r"\beval\b|\bFunction\(|innerHTML|insertAdjacentHTML|https?://|fetch\(", text), name
