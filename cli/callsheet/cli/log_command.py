"""`callsheet logs`: what the processes of `callsheet up` logged."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from callsheet.cli.options import AsJson, DataDir
from callsheet.cli.output import CommandError, say
from callsheet.deploy.terminal import visible_line

_POLL_S = 0.2
_SHOWN_APART = ("timestamp", "level", "role", "event")


def logs(
    role: Annotated[
        str | None, typer.Argument(metavar="[ROLE]", help="scheduler, or the kind of a manager; by default all.")
    ] = None,
    *,
    data_dir: DataDir,
    job: Annotated[str, typer.Option(help="Only lines that name this job.")] = "",
    trajectory: Annotated[str, typer.Option(help="Only lines that name this trajectory.")] = "",
    action: Annotated[str, typer.Option(help="Only lines that name this action.")] = "",
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="The most lines, the newest ones.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new lines until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the logs of the processes of `callsheet up`.

    Lines come from DATA_DIR/logs, the oldest first. With --json each line is the object that was logged.
    """
    files = log_files(data_dir / "logs", role)
    ids = [each for each in (job, trajectory, action) if each]
    ends = {path: path.stat().st_size for path in files.values()}
    for name, line in last_lines(files, ends, ids, lines):
        print_line(name, line, as_json)
    while follow:
        time.sleep(_POLL_S)
        for name, path in files.items():
            for line in new_lines(path, ends):
                if matches(line, ids):
                    print_line(name, line, as_json)


def log_files(directory: Path, role: str | None) -> dict[str, Path]:
    """The logs in a directory by role.

    Raises:
        CommandError: There are none.
    """
    files = {path.stem: path for path in sorted(directory.glob("*.log")) if role is None or path.stem == role}
    if not files:
        which = f"{role}.log" if role is not None else "logs"
        raise CommandError(
            f"data-dir: {directory} has no {which}; callsheet up writes them unless it runs with --log-stderr",
            code="NOT_FOUND",
        )
    return files


def last_lines(files: dict[str, Path], ends: dict[Path, int], ids: list[str], count: int) -> list[tuple[str, str]]:
    """The last lines that name all ids, with their roles, by time.

    Args:
        files: The logs by role.
        ends: Up to where to read each; set to where its last whole line ends.
        ids: What the lines must name.
        count: The most lines.
    """
    found: list[tuple[str, str, str]] = []
    for name, path in files.items():
        kept: deque[str] = deque(maxlen=count)
        begin = {path: 0}
        for line in new_lines(path, begin, ends[path]):
            if matches(line, ids):
                kept.append(line)
        ends[path] = begin[path]
        # A line without a time belongs to the one before it.
        at = ""
        for line in kept:
            at = str(parse(line).get("timestamp", at))
            found.append((at, name, line))
    found.sort(key=lambda each: each[0])
    return [(name, line) for _, name, line in found[max(len(found) - count, 0) :]]


def new_lines(path: Path, places: dict[Path, int], end: int | None = None) -> Iterator[str]:
    """The whole lines of a log from a place on, or up to an end; moves the place behind each."""
    if not path.exists():
        return
    with path.open("rb") as stream:
        if path.stat().st_size < places[path]:
            # One that is shorter than it was has begun anew.
            places[path] = 0
        stream.seek(places[path])
        for line in stream:
            if not line.endswith(b"\n") or (end is not None and places[path] + len(line) > end):
                return
            places[path] += len(line)
            yield line.decode(errors="replace").rstrip("\n")


def print_line(name: str, line: str, as_json: bool) -> None:
    """Prints a line as it is, or for people with its role."""
    say(line if as_json else readable(line, name))


def matches(line: str, ids: Sequence[str]) -> bool:
    """Returns whether a line names all ids, each as a value or as a part of one such as "job/action"."""
    if not ids:
        return True
    named: set[str] = set()
    for value in parse(line).values():
        text = str(value)
        named.add(text)
        named.update(text.split("/"))
    return named.issuperset(ids)


def parse(line: str) -> Mapping[str, Any]:
    """The fields of a structured line; one that is not structured is an event without more."""
    try:
        fields = json.loads(line)
    except ValueError:
        return {"event": line}
    return fields if isinstance(fields, dict) else {"event": line}


def readable(line: str, role: str) -> str:
    """A line for people: time, role, level, event, and the rest as name=value."""
    fields = {"timestamp": "", "level": "", "event": "", **parse(line)}
    rest = [f"{name}={value}" for name, value in fields.items() if name not in _SHOWN_APART]
    parts = [str(fields["timestamp"]), role, str(fields["level"]), str(fields["event"]), *rest]
    return visible_line(" ".join(part for part in parts if part))
