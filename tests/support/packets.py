"""How many packets with data come for an answer, as the kernel counts them at the client's end."""

from __future__ import annotations

import socket
import struct

_WAIT_S = 30.0
# Of `struct tcp_info`: tcpi_data_segs_in.
_DATA_SEGMENTS_IN = 152


def packets_of(address: str, request: bytes, answers: int = 1) -> tuple[int, bytes]:
    """Sends a request a number of times on one connection; returns the packets of all answers, and the last answer.

    An answer ends with its Content-Length. Blocks.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), _WAIT_S) as connection:
        found = b""
        for _ in range(answers):
            connection.sendall(request)
            found = _answer(connection)
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _DATA_SEGMENTS_IN + 4)
    return struct.unpack_from("=I", told, _DATA_SEGMENTS_IN)[0], found


def _answer(connection: socket.socket) -> bytes:
    found = b""
    while b"\r\n\r\n" not in found:
        found += _some(connection)
    head, _, body = found.partition(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < int(lengths[0]):
        body += _some(connection)
    return head + b"\r\n\r\n" + body


def _some(connection: socket.socket) -> bytes:
    some = connection.recv(1 << 16)
    if not some:
        raise EOFError
    return some
