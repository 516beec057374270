"""Lines of trace files, compressed or not."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO, cast

from callsheet.benchmarks.simulator.input_table import InputError, InputTable

# A line beyond this is no trajectory but a mistake; it bounds memory.
_LONGEST_LINE = 64 * 1024 * 1024
# With or without the mark that some programs put in front.
_TEXT = "utf-8-sig"


def read_lines(path: Path) -> Iterator[str]:
    """The file's lines, empty ones too; files that end in .gz are unpacked.

    Raises:
        InputError: A line is too long or not UTF-8, or a packed file is damaged.
        OSError: The file cannot be read.
    """
    with _open(path) as file:
        while line := _next_line(file, path.name):
            yield line


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding=_TEXT))
    return path.open(encoding=_TEXT)


def _next_line(file: TextIO, name: str) -> str:
    try:
        line = file.readline(_LONGEST_LINE)
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise InputError(name, str(error), "must be UTF-8 text, packed by gzip if it ends in .gz") from error
    if len(line) == _LONGEST_LINE:
        raise InputError(name, f"{line[:40]}...", f"must have lines shorter than {_LONGEST_LINE} characters")
    return line


def json_tables(lines: Iterable[str], name: str) -> Iterator[InputTable]:
    """One table a line of JSON; empty lines are passed over.

    Raises:
        InputError: A line is not JSON, or not an object.
    """
    for count, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}:{count}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(where, line[:40], f"must be JSON: {error}") from error
        yield InputTable(values, where)
