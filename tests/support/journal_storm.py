"""A program that commits as fast as it can and says what is committed, until it is killed.

Prints "epoch N", then "submitted ID" and "finished ID" for each action once it is durable.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import anyio
import structlog
from callsheet.scheduler.core.words.records import ActionDispatched, ActionFinished, JobOpened, Record
from callsheet.scheduler.store.journal import Journal
from callsheet.scheduler.store.writer import GroupCommitWriter

from tests.support.journals import JournalPlace, submitted

_PER_SUBMIT = 5
_MOST_UNCOMMITTED = 500


def _say(*lines: str) -> None:
    """Writes whole lines at once, without a buffer that a kill would lose."""
    os.write(1, "".join(f"{line}\n" for line in lines).encode())


def _give_up(error: BaseException) -> None:
    os.write(2, f"{error!r}\n".encode())
    os._exit(1)


async def _storm(journal: Journal) -> None:
    writer = GroupCommitWriter(journal, _give_up)
    writer.start()
    number = 0
    while True:
        ids = [f"{journal.epoch}-{number + offset}" for offset in range(_PER_SUBMIT)]
        number += _PER_SUBMIT
        records: list[Record] = [submitted(action_id, spec=b"s" * 300) for action_id in ids]
        writer.submit(records, partial(_say, *(f"submitted {action_id}" for action_id in ids)))
        records = [
            ActionDispatched("job", action_id, 1, journal.epoch, number, "manager", "process") for action_id in ids
        ]
        # Every other one finishes.
        ended = ids[::2]
        records += [ActionFinished("job", action_id, "succeeded", action_id.encode(), 1.0) for action_id in ended]
        writer.submit(records, partial(_say, *(f"finished {action_id}" for action_id in ended)))
        while writer.backlog > _MOST_UNCOMMITTED:
            await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()


def main() -> None:
    """Commits in the given data directory, and database if there is one."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    place = JournalPlace(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
    with place.begun() as journal:
        _say(f"epoch {journal.epoch}")
        if not journal.load().jobs:
            journal.commit([JobOpened("job", b"")])
        anyio.run(_storm, journal)


if __name__ == "__main__":
    main()
