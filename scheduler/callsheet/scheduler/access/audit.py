"""Records acts of callers that affect others, with a line of JSON for each act.

audit.jsonl             in the scheduler's data directory: acts by calls
NAME.audit.jsonl        beside the tokens in NAME.json: acts of `callsheet token`
*.jsonl.1               the lines before those, once a file had reached `MAX_BYTES`; older ones are gone
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from callsheet.options.private_files import make_private_directory
from filelock import FileLock

MAX_BYTES: Final = 16 * 1024 * 1024  # of one file; there are two of each
# Characters of one text: an id of a refused request may be as long as a message.
MAX_TEXT: Final = 256


def audit_line(act: str, now: float, facts: Mapping[str, object]) -> dict[str, object]:
    """One act, as a line of a log.

    Args:
        act: For instance "drain".
        now: Seconds since the epoch.
        facts: Who, from where, what and the result. No content of requests, and no reasons: these are texts of others.
    """
    short = {name: value[:MAX_TEXT] if isinstance(value, str) else value for name, value in facts.items()}
    return {"timestamp": datetime.fromtimestamp(now, UTC).isoformat(), "event": "audit", "act": act, **short}


def append_lines(path: Path, lines: Sequence[Mapping[str, object]], max_bytes: int = MAX_BYTES) -> None:
    """Appends lines, for their owner alone. Several processes may.

    Raises:
        OSError: They cannot be written, or another process has the file locked.
    """
    content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    make_private_directory(path.parent)
    with FileLock(f"{path}.lock", timeout=10.0, mode=0o600):
        if path.exists() and path.stat().st_size + len(content) > max_bytes:
            path.replace(f"{path}.1")
        with os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "rb+") as file:
            # A line that a full disk cut short stays one for itself.
            cut = file.seek(0, os.SEEK_END) and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
            file.write(b"\n" * cut + content)
