"""The C parts of standard modules, without the packages around them.

Every sandbox pays for the start of this program and keeps its memory, and most of both would be enum, re and ctypes,
which those packages import. Where a C part is not there, or is not what it was, the package itself serves. Whatever is
used is loaded here, at the start: later, what is loaded could come from code that nobody trusts.
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

__all__ = ["call", "parse", "placed", "serialise", "signal", "socket"]


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
    import json

    _scan = _encode = None  # type: ignore[assignment]


def parse(text: bytes) -> Any:
    """Returns what JSON from the manager says."""
    if _scan is not None:
        return _scan(text.decode(), 0)[0]
    return json.loads(text)


def serialise(value: dict[str, Any]) -> bytes:
    """Returns a value as JSON."""
    if _encode is not None:
        return "".join(_encode(value, 0)).encode()
    return json.dumps(value).encode()


try:
    import _ctypes

    _library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    _addresses = {name: _ctypes.dlsym(_library, name) for name in ("prctl", "syscall")}

    class _Byte(_ctypes._SimpleCData):  # type: ignore[type-arg]
        _type_ = "B"

    _address_of = _ctypes.addressof
except (ImportError, AttributeError):
    import ctypes

    _library, _addresses = ctypes.CDLL(None), None  # type: ignore[assignment]
    _Byte, _address_of = ctypes.c_ubyte, ctypes.addressof  # type: ignore[misc,assignment]


def call(name: str, *arguments: int | bytes | None) -> int:
    """Calls prctl(2) or syscall(2): integers of 32 bits and buffers. Returns what it returns, without an errno."""
    if _addresses is not None:
        return int(_ctypes.call_function(_addresses[name], arguments))
    return int(getattr(_library, name)(*arguments))


def placed(content: bytes) -> tuple[object, int]:
    """Returns a copy that stays where it is as long as somebody has it, and its address."""
    block = (_Byte * len(content)).from_buffer_copy(content)
    return block, _address_of(block)
