"""Reads JUnit XML reports that untrusted code may have written."""

from __future__ import annotations

from dataclasses import dataclass
from xml.parsers import expat

LARGEST_REPORT_BYTES = 32 << 20
_DEEPEST = 64


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

    def start(self, name: str, attributes: dict[str, str]) -> None:
        del attributes
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ReportError(f"elements nested more than {_DEEPEST} deep")
        if self._depth == 1 and name not in {"testsuites", "testsuite"}:
            raise ReportError(f"a document of {name[:100]!r} instead of testsuites")
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


def count_tests(report: bytes) -> ReportCounts:
    """Returns the counts of a report. The totals that it states itself are not believed; its test cases are counted.

    Raises:
        ReportError: It is too large, not well-formed, in an encoding that no report has, has a document type (and so
            could have entities), or is no report.
    """
    if len(report) > LARGEST_REPORT_BYTES:
        raise ReportError(f"{len(report)} bytes; at most {LARGEST_REPORT_BYTES} are read")
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


def _refuse_document_type(*_: object) -> None:
    raise ReportError("it has a document type")
