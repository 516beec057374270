"""Snapshots: the files that a set-up ended with, known by everything that they came from."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from callsheet.managers.sandbox.backend import CommandOutcome, CommandSpec, FileSpec, Sizes, suffices

# With a number: what was kept or noted in another way is not found any more.
KEY_PREFIX = "set-up-4-"
_FEW_FILES, _FEW_BYTES = 4, 1 << 20
_OUTPUTS = ("stdout", "stderr")
_NUMBERS = ("exit_code", "signal", "stdout_dropped", "stderr_dropped", "wall_s", "cpu_s", "peak_memory_bytes")


@dataclass(frozen=True, slots=True)
class SetUp:
    """How a sandbox is set up.

    Attributes:
        files: Written first, in this order.
        command: Run then; None for nothing.
    """

    files: tuple[FileSpec, ...] = ()
    command: CommandSpec | None = None

    @property
    def is_empty(self) -> bool:
        """Returns whether there is nothing to do."""
        return not self.files and self.command is None

    @property
    def is_short(self) -> bool:
        """Returns whether doing the set-up again takes no longer than looking for its snapshot."""
        return (
            self.command is None
            and len(self.files) <= _FEW_FILES
            and not any(file.unpack for file in self.files)
            and sum(len(file.content) for file in self.files) <= _FEW_BYTES
        )


@dataclass(frozen=True, slots=True)
class KeptSetUp:
    """Report to the scheduler about a snapshot.

    Attributes:
        name: Its name, as `callsheet.v1.set_ups` derives it.
        image: The image that it was set up in; empty for the machine's own system.
        took_s: Seconds that the set-up took.
    """

    name: str
    image: str
    took_s: float


@dataclass(frozen=True, slots=True)
class Note:
    """Note beside a snapshot; `outcome` is that of its command, None if there was none."""

    set_up: KeptSetUp
    outcome: CommandOutcome | None


def snapshot_key(image_digest: str, set_up: SetUp, environment: Sequence[str]) -> str:
    """Returns how the name of a snapshot begins: alike exactly for alike images, files, commands and environments.

    Args:
        image_digest: Of the image; empty for the machine's own system.
        set_up: The files and the command.
        environment: Whatever else the files may depend on, such as directories that are shown inside.
    """
    digest = hashlib.sha256()

    def add(*parts: object) -> None:
        # Lengths first, so that no two lists of parts look alike.
        for part in parts:
            content = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogateescape")
            digest.update(f"{len(content)}:".encode())
            digest.update(content)

    add(image_digest, len(environment), *environment, len(set_up.files))
    for file in set_up.files:
        add(file.path, file.unpack, file.directory, file.mode, hashlib.sha256(file.content).digest())
    command = set_up.command
    if command is not None:
        add(len(command.arguments), *command.arguments, len(command.environment))
        for name, value in sorted(command.environment.items()):
            add(name, value)
        add(command.working_directory, hashlib.sha256(command.stdin).digest(), command.max_output_bytes)
    return f"{KEY_PREFIX}{digest.hexdigest()}"


def layer_name(key: str, sizes: Sizes) -> str:
    """Returns the name of a snapshot that was made in a sandbox of some sizes."""
    return "-".join((key, *map(str, sizes)))


def serves(layer: str, key: str, asked: Sizes) -> bool:
    """Returns whether a snapshot has this key, and its sandbox had no size smaller than the request."""
    return layer.startswith(f"{key}-") and suffices(tuple(map(int, layer[len(key) + 1 :].split("-"))), asked)


def encode_note(note: Note) -> bytes:
    """Returns a note as it is kept beside the snapshot."""
    written: dict[str, object] = asdict(note.set_up)
    if note.outcome is not None:
        outcome: dict[str, object] = {name: getattr(note.outcome, name) for name in _NUMBERS}
        for name in _OUTPUTS:
            outcome[name] = base64.b64encode(getattr(note.outcome, name)).decode()
        written["outcome"] = outcome
    return json.dumps(written).encode()


def read_note(encoded: bytes) -> Note:
    """Undoes `encode_note`."""
    written = json.loads(encoded)
    outcome = written.pop("outcome", None)
    if outcome is not None:
        outcome = CommandOutcome(**{**outcome, **{name: base64.b64decode(outcome[name]) for name in _OUTPUTS}})
    return Note(KeptSetUp(**written), outcome)
