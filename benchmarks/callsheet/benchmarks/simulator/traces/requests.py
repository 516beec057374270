"""Traces of single LLM requests: when, how many tokens in and out. Two public formats."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from callsheet.benchmarks.simulator.input_table import InputError, InputTable
from callsheet.benchmarks.simulator.traces.lines import json_tables

AZURE_HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class Request:
    """A request. `arrives_s` counts from the first one of its trace."""

    arrives_s: float
    prompt_tokens: int
    output_tokens: int


def read_azure(lines: Iterable[str], name: str) -> Iterator[Request]:
    """The CSV of Azure's public LLM inference traces (AzurePublicDataset, 2023): header, then one request a line.

    Raises:
        InputError: The header or a line is not right.
    """
    rows = csv.reader(lines)
    header = tuple(next(rows, ()))
    if header != AZURE_HEADER:
        raise InputError(f"{name}:1", ",".join(header), f"must be {','.join(AZURE_HEADER)}")
    first: datetime | None = None
    for count, row in enumerate(rows, start=2):
        where = f"{name}:{count}"
        if len(row) != len(AZURE_HEADER):
            raise InputError(where, ",".join(row), f"must have {len(AZURE_HEADER)} fields")
        at = _timestamp(row[0], where)
        first = first or at
        prompt, output = (
            _tokens(text, f"{where}.{field}") for text, field in zip(row[1:], AZURE_HEADER[1:], strict=True)
        )
        yield Request(max(0.0, (at - first).total_seconds()), prompt, output)


def read_mooncake(lines: Iterable[str], name: str) -> Iterator[Request]:
    """The JSON lines of Mooncake's public traces (FAST'25): timestamp in ms, input_length, output_length, hash_ids.

    Raises:
        InputError: A line is not right.
    """
    first: float | None = None
    for table in json_tables(lines, name):
        request = _read_mooncake_line(table)
        first = request.arrives_s if first is None else first
        yield Request(max(0.0, request.arrives_s - first), request.prompt_tokens, request.output_tokens)


def _read_mooncake_line(table: InputTable) -> Request:
    table.value("hash_ids", [])  # of its prefix cache; nothing here needs them
    with table:
        return Request(
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
    if found < 0:
        raise InputError(where, found, "must be at least 0")
    return found
