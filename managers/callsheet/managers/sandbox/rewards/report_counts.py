"""Counts the tests of a report: of JUnit as the parser meets them, or of CTRF.

It is a program, too, for the standard library alone: a large report is counted in a process of its own, in the groups
of the sandbox that wrote it. So it takes memory and time of nobody else.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from xml.parsers import expat

LARGEST_REPORT_BYTES = 32 << 20
# Parsed as a whole, and not while it is read.
_LARGEST_CTRF_BYTES = 4 << 20
_DEEPEST = 64
_LONGEST_NUMBER, _SPACE_BEFORE = 9, 64


class ReportError(ValueError):
    """A report that cannot be read."""


@dataclass(frozen=True, slots=True)
class ReportCounts:
    """How many tests passed, failed (or broke) and were skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def total(self) -> int:
        """Tests that ran."""
        return self.passed + self.failed


class _Counter:
    """Counts test cases as the parser meets them; keeps nothing else of the document."""

    def __init__(self) -> None:
        self.passed = self.failed = self.skipped = 0
        self._depth = 0
        self._verdict = ""
        # Of each suite around: how many tests it states, and how many had been counted before it.
        self._suites: list[tuple[str, int]] = []

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ReportError(f"elements nested more than {_DEEPEST} deep")
        if self._depth == 1 and name not in {"testsuites", "testsuite"}:
            raise ReportError(f"a document of {name[:100]!r} instead of testsuites")
        if name == "testsuite":
            self._suites.append((attributes.get("tests", ""), self.passed + self.failed))
        if name == "testcase":
            self._verdict = "passed"
        elif name in {"failure", "error"} and self._verdict:
            self._verdict = "failed"
        elif name == "skipped" and self._verdict == "passed":
            self._verdict = "skipped"

    def end(self, name: str) -> None:
        self._depth -= 1
        if name == "testcase":
            self.passed += self._verdict == "passed"
            self.failed += self._verdict == "failed"
            self.skipped += self._verdict == "skipped"
            self._verdict = ""
        if name == "testsuite":
            stated, before = self._suites.pop()
            # A test that was interrupted is written down as one that has not failed, and is not in this number.
            if stated.isdecimal() and int(stated[:_LONGEST_NUMBER]) < self.passed + self.failed - before:
                raise ReportError(f"a suite of more test cases than the {stated[:_LONGEST_NUMBER]} that it states")


def count_tests(report: bytes) -> ReportCounts:
    """Returns the counts of a report of JUnit or CTRF.

    The totals that it states itself are not believed; its test cases are counted.

    Raises:
        ReportError: It is too large, not well-formed, in an encoding that no report has, has a document type (and so
            could have entities), or is no report.
    """
    if len(report) > LARGEST_REPORT_BYTES:
        raise ReportError(f"{len(report)} bytes; at most {LARGEST_REPORT_BYTES} are read")
    if report[:_SPACE_BEFORE].lstrip().startswith(b"{"):
        return _count_ctrf(report)
    counter = _Counter()
    parser = expat.ParserCreate()
    parser.StartElementHandler = counter.start
    parser.EndElementHandler = counter.end
    parser.StartDoctypeDeclHandler = _refuse_document_type
    try:
        parser.Parse(report, True)
    except expat.ExpatError as error:
        raise ReportError(f"not well-formed: {error}") from error
    except ReportError:
        raise
    except (LookupError, ValueError) as error:
        # The report names its encoding, and so chooses among all codecs that there are.
        raise ReportError(f"in an encoding that cannot be read: {error}") from error
    return ReportCounts(counter.passed, counter.failed, counter.skipped)


def _count_ctrf(report: bytes) -> ReportCounts:
    if len(report) > _LARGEST_CTRF_BYTES:
        raise ReportError(f"{len(report)} bytes of CTRF; at most {_LARGEST_CTRF_BYTES} are read")
    try:
        statuses = Counter(str(test["status"]) for test in json.loads(report)["results"]["tests"])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ReportError(f"no CTRF: {type(error).__name__}") from error
    passed, skipped = statuses.pop("passed", 0), statuses.pop("skipped", 0) + statuses.pop("pending", 0)
    # What has any other status has not passed.
    return ReportCounts(passed, statuses.total(), skipped)


def _refuse_document_type(*_: object) -> None:
    raise ReportError("it has a document type")


def main() -> None:
    """Enters groups, and writes what the report on its standard input holds.

    Its arguments are the files that a process writes "0" into to enter them.
    """
    for entry in sys.argv[1:]:
        with open(entry, "w") as file:
            file.write("0")
    try:
        answer: dict[str, object] = asdict(count_tests(sys.stdin.buffer.read()))
    except ReportError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
