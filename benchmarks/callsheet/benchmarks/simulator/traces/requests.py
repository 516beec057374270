"""Traces of single LLM requests: when, how many tokens in and out. Two public formats."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from callsheet.benchmarks.simulator.input_table import InputError, InputTable, number
from callsheet.benchmarks.simulator.traces.lines import json_tables

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AZURE_HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request. `arrives_s` counts from any time, the same one for all requests of a trace."""

    arrives_s: float
    prompt_tokens: int
    output_tokens: int


def read_azure(lines: Iterable[str], name: str) -> Iterator[EngineRequest]:
    """The CSV of Azure's public LLM inference traces (AzurePublicDataset, 2023): header, then one request a line.

    Raises:
        InputError: The header or a line is not right.
    """
    rows = _csv_rows(lines, name)
    where, header = next(rows, (f"{name}:1", []))
    if tuple(header) != AZURE_HEADER:
        raise InputError(where, ",".join(header), f"must be {','.join(AZURE_HEADER)}")
    for where, row in rows:
        if len(row) != len(AZURE_HEADER):
            raise InputError(where, ",".join(row), f"must have {len(AZURE_HEADER)} fields")
        at = _timestamp(row[0], where)
        prompt, output = (
            _tokens(text, f"{where}.{field}") for text, field in zip(row[1:], AZURE_HEADER[1:], strict=True)
        )
        yield EngineRequest((at - _EPOCH).total_seconds(), prompt, output)


def _csv_rows(lines: Iterable[str], name: str) -> Iterator[tuple[str, list[str]]]:
    """Rows that are not empty, each with where it is."""
    rows = csv.reader(lines)
    try:
        for row in rows:
            if any(field.strip() for field in row):
                yield f"{name}:{rows.line_num}", row
    except csv.Error as error:
        raise InputError(f"{name}:{rows.line_num}", "...", f"must be CSV: {error}") from error


def read_mooncake(lines: Iterable[str], name: str) -> Iterator[EngineRequest]:
    """The JSON lines of Mooncake's public traces (FAST'25): timestamp in ms, input_length, output_length, hash_ids.

    Raises:
        InputError: A line is not right.
    """
    for table in json_tables(lines, name):
        yield _read_mooncake_line(table)


def _read_mooncake_line(table: InputTable) -> EngineRequest:
    table.value("hash_ids", [])  # of its prefix cache; nothing here needs them
    with table:
        return EngineRequest(
            arrives_s=table.number("timestamp") / 1000.0,
            prompt_tokens=table.integer("input_length"),
            output_tokens=table.integer("output_length"),
        )


def _timestamp(text: str, where: str) -> datetime:
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InputError(f"{where}.TIMESTAMP", text, "must be like 2023-11-16 18:17:03.97") from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _tokens(text: str, where: str) -> int:
    try:
        found = int(text)
    except ValueError as error:
        raise InputError(where, text, "must be a whole number") from error
    return int(number(found, where, 0.0, math.inf))
