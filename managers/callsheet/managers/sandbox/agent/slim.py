"""The C parts of standard modules, without the packages around them.

Every sandbox pays for the start of this program and keeps its memory, and most of both would be enum, re and ctypes,
which those packages import. Where a C part is not there, or is not what it was, the package itself serves.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any
else:
    import _signal as signal
    import _socket as socket

__all__ = ["call_kernel", "parse", "prctl", "serialise", "signal", "socket"]


class _Rules:
    """How the parser in C is to parse."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = None


try:
    import _json

    _scan = _json.make_scanner(_Rules())  # type: ignore[arg-type]
    _encode = _json.make_encoder(None, None, _json.encode_basestring_ascii, None, ": ", ", ", False, False, True)  # type: ignore[arg-type]
except (ImportError, AttributeError, TypeError):
    _scan = _encode = None  # type: ignore[assignment]


def parse(text: bytes) -> Any:
    """Returns what JSON from the manager says."""
    if _scan is not None:
        return _scan(text.decode(), 0)[0]
    import json

    return json.loads(text)


def serialise(value: dict[str, Any]) -> bytes:
    """Returns a value as JSON."""
    if _encode is not None:
        return "".join(_encode(value, 0)).encode()
    import json

    return json.dumps(value).encode()


def prctl(option: int, value: int) -> None:
    """Calls prctl(2), for options that cannot fail."""
    try:
        import _ctypes

        library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
        function = _ctypes.dlsym(library, "prctl")
        _ctypes.call_function(function, (option, value, 0, 0, 0))
    except (ImportError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def call_kernel(number: int, *arguments: int) -> int:
    """Makes a system call whose arguments may be addresses; returns what it returned, or -1 if it failed."""
    try:
        import _ctypes

        class Word(_ctypes._SimpleCData):  # type: ignore[type-arg]
            _type_ = "P"

        function = _ctypes.dlsym(_ctypes.dlopen(None, 0), "syscall")  # type: ignore[arg-type]
        return int(_ctypes.call_function(function, (Word(number), *map(Word, arguments))))
    except (ImportError, AttributeError):
        import ctypes

        return int(ctypes.CDLL(None).syscall(*map(ctypes.c_void_p, (number, *arguments))))
