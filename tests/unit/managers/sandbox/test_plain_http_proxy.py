"""Requests to a sandbox's proxy: where they lead, and what the server is told."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from callsheet.managers.sandbox.network.plain_http import read_head


def test_a_tunnel_says_where_to_and_nothing_else() -> None:
    request = read_head(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\nProxy-Authorization: Basic x")
    assert (str(request.destination), request.is_tunnel) == ("example.org:443", True)


@pytest.mark.parametrize(
    ("target", "destination", "origin"),
    [
        ("http://example.org/a?b=c", "example.org:80", "/a?b=c"),
        ("http://example.org:8080", "example.org:8080", "/"),
        ("HTTP://Example.org:?q", "example.org:80", "/?q"),
        ("http://[2001:db8::1]/", "[2001:db8::1]:80", "/"),
        ("http://[2001:db8::1]:81/", "[2001:db8::1]:81", "/"),
        ("http://localhost:7078/v1", "127.0.0.1:7078", "/v1"),
    ],
)
def test_a_url_becomes_a_path_at_its_server(target: str, destination: str, origin: str) -> None:
    request = read_head(f"POST {target} HTTP/1.1\r\nHost: another".encode())
    assert str(request.destination) == destination
    authority = urlsplit(target).netloc
    assert request.head == f"POST {origin} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n".encode()


def test_what_is_between_client_and_proxy_goes_no_further() -> None:
    fields = (
        b"Host: h",
        b"Connection: keep-alive, X-Hop",
        b"x-hop: 1",
        b"Proxy-Connection: keep-alive",
        b"Proxy-Authorization: secret",
        b"Transfer-Encoding: chunked",
    )
    request = read_head(b"\r\n".join((b"GET http://h/ HTTP/1.1", *fields)))
    assert request.head == (b"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"CONNECT",
        b"CONNECT example.org HTTP/1.1",
        b"CONNECT http://example.org/ HTTP/1.1",
        b"GET / HTTP/1.1",
        b"GET https://example.org/ HTTP/1.1",
        b"GET http://user@example.org/ HTTP/1.1",
        b"GET http:///path HTTP/1.1",
        b"GET http://example.org:99999/ HTTP/1.1",
        b"GET http://\xff/ HTTP/1.1",
        b"GET http://example.org/ HTTP/2",
        b"get http://example.org/ HTTP/1.1",
        b"GET  http://example.org/ HTTP/1.1",
    ],
)
def test_anything_else_is_refused(head: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - a decoder's own error, too
        read_head(head)
