"""The table of laws: what a report of pytest says, and earlier results of laws that a run left out."""

from __future__ import annotations

from pathlib import Path

from scripts.lab_table import BEGIN, END, note_results
from scripts.nightly import results_in, rows_of

REPORT = """<testsuites><testsuite>
<testcase name="test_it_holds[a]" time="90"><properties>
<property name="measured" value="test_it_holds[a]: 3 of 3"/><property name="measured" value="test_it_holds[a]: fast"/>
</properties></testcase>
<testcase name="test_it_fails" time="3"><failure message="no"/></testcase>
</testsuite></testsuites>"""
RUN = {"commit": "abc", "date": "2026-11-26", "machine": "2 cores"}


def test_earlier_results_stay_beside_those_of_a_part(tmp_path: Path) -> None:
    report, page = tmp_path / "report.xml", tmp_path / "page.md"
    report.write_text(REPORT, encoding="utf-8")
    page.write_text(f"# Laws\n\n{BEGIN}\n{END}\n\nMore.\n", encoding="utf-8")
    found = {law: RUN | result for law, result in results_in(report).items()}
    note_results(page, found, rows_of)
    note_results(page, {"it fails": found["it fails"] | {"holds": True}}, rows_of)
    assert page.read_text(encoding="utf-8").splitlines()[2:-2] == [
        BEGIN,
        "| law | holds | figures | minutes | commit | date and machine |",
        "| --- | --- | --- | --- | --- | --- |",
        "| it fails | yes |  | 0.1 | abc | 2026-11-26, 2 cores |",
        "| it holds: a | yes | 3 of 3; fast | 1.5 | abc | 2026-11-26, 2 cores |",
        END,
    ]
