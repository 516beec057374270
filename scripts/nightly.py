"""Runs the laws of tests/soak in full size, one after another, and notes each with its figures in docs/lab.

    scripts/nightly.py [ARGUMENT...]    arguments go on to pytest, for instance a file of tests/soak

Each file is a run of pytest of its own and notes its laws as it ends, so an interrupted night keeps those that ended.
Earlier results of other laws stay in the table of docs/lab/2026-11-nightly.md.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from callsheet.benchmarks.measuring.machine import describe_machine

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.lab_table import LAB, Results, note_results  # noqa: E402

PAGE = LAB / "2026-11-nightly.md"
# A skipped law is not proved, and what a test notes goes into the report of this family alone.
ENVIRONMENT = {"CALLSHEET_NIGHTLY": "1", "CI": "true"}
OPTIONS = ("-v", "-o", "junit_family=xunit1", "-o", "timeout=3600")


def main() -> int:
    """Runs pytest for each file, or once with the arguments; returns the largest exit code."""
    files = sorted((ROOT / "tests" / "soak").glob("test_*.py"))
    return max(run(arguments) for arguments in ([sys.argv[1:]] if sys.argv[1:] else [[str(file)] for file in files]))


def run(arguments: list[str]) -> int:
    """Runs pytest with these arguments and notes its laws; returns its exit code."""
    report = ROOT / "build" / f"nightly-{os.getpid()}.xml"
    command = [sys.executable, "-m", "pytest", *OPTIONS, f"--junitxml={report}", *arguments]
    # An earlier part of the run may have changed the page.
    commit = git("rev-parse", "--short", "HEAD") + " with changes" * bool(git("status", "--porcelain", ":!docs/lab"))
    origin = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "commit": commit, "machine": machine()}
    code = subprocess.run(command, cwd=ROOT, env=os.environ | ENVIRONMENT, check=False).returncode
    if code in (0, 1):  # others tell of a run that was interrupted
        results = {law: origin | found for law, found in results_in(report).items()}
        note_results(PAGE, results, rows_of)
    return code


def git(*arguments: str) -> str:
    """What a command of git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def machine() -> str:
    """The machine in words."""
    found = describe_machine()
    return f"{found['cores']} cores, {found['processor']}, load {found['load_1m']:.0f}"


def results_in(report: Path) -> dict[str, dict[str, object]]:
    """What a report of pytest says, by law: its figures, its minutes, and whether it holds."""
    results: dict[str, dict[str, object]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("name", "")
        law, _, which = name.removesuffix("]").removeprefix("test_").replace("_", " ").partition("[")
        lines = [noted.get("value", "").removeprefix(f"{name}: ") for noted in case.iter("property")]
        results[f"{law}: {which}" if which else law] = {
            "figures": "; ".join(lines),
            "minutes": round(float(case.get("time", 0)) / 60, 1),
            "holds": not any(child.tag in ("failure", "error") for child in case),
        }
    return results


def rows_of(known: Results) -> list[list[str]]:
    """The table of laws."""
    return [
        ["law", "holds", "figures", "minutes", "commit", "date and machine"],
        *(
            [
                law,
                "yes" if found["holds"] else "**no**",
                *(str(found[name]) for name in ("figures", "minutes", "commit")),
                f"{found['date']}, {found['machine']}",
            ]
            for law, found in sorted(known.items())
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
