"""Which requests are refused as those of web pages."""

from __future__ import annotations

import pytest
from callsheet.credentials.web_pages import why_of_a_web_page

LOOPBACK, EVERYWHERE = ("127.0.0.1", "127.0.0.1"), ("10.0.0.7", "0.0.0.0")


def refused(
    host: str, here: tuple[str, ...], names: tuple[str, ...] = (), *, has_certificate: bool = False, origin: str = ""
) -> bool:
    headers = [("host", host), *([("origin", origin)] if origin else []), ("accept", "*/*")]
    return why_of_a_web_page(headers, here, names, has_certificate=has_certificate) is not None


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:7078",
        "localhost.:7078",
        "49983-x.localhost",
        "127.0.0.1:7078",
        "127.0.0.2",
        "[::1]:80",
        "",
    ],
)
def test_on_the_loopback_its_own_names_are_known(host: str) -> None:
    for here in (LOOPBACK, ("::1", "localhost"), ("::ffff:127.0.0.1", "::"), ("127.0.0.1", "0.0.0.0")):
        assert not refused(host, here), here


@pytest.mark.parametrize(
    "host",
    [
        *("page.example", "page.example:7078", "localhost.page.example", "127.0.0.1.page.example", "notlocalhost"),
        *("10.0.0.7", "[2001:db8::1]:7078", "[::1", "a@127.0.0.1", "127.1", "0x7f000001"),
    ],
)
def test_a_name_that_was_made_to_lead_here_is_refused(host: str) -> None:
    if host != "[::1":
        assert refused(host, LOOPBACK)
    assert refused(host, EVERYWHERE) == (host != "10.0.0.7")


def test_elsewhere_its_address_and_the_names_of_its_operator_are_known() -> None:
    assert not refused("10.0.0.7:7078", EVERYWHERE)
    assert not refused("[2001:DB8::1]:7078", ("2001:db8::1", "::"))
    assert not refused("gateway", ("10.0.0.7", "gateway"))
    assert refused("gateway:7078", EVERYWHERE)
    assert not refused("Gateway:7078", EVERYWHERE, ("gateway",))
    assert refused("page.example", EVERYWHERE, ("gateway",))
    assert refused("localhost", EVERYWHERE)


def test_a_certificate_names_its_server_unless_its_operator_does() -> None:
    assert not refused("gateway", EVERYWHERE, has_certificate=True)
    assert not refused("gateway", LOOPBACK, has_certificate=True)
    assert refused("page.example", EVERYWHERE, ("gateway",), has_certificate=True)


@pytest.mark.parametrize("origin", ["http://page.example", "http://127.0.0.1:7078", "null"])
def test_a_page_is_refused_wherever_it_is(origin: str) -> None:
    assert refused("127.0.0.1", LOOPBACK, origin=origin)
    assert refused("gateway", EVERYWHERE, ("gateway",), origin=origin, has_certificate=True)


def test_each_of_several_hosts_must_be_known() -> None:
    for hosts in (("localhost", "page.example"), ("page.example", "localhost")):
        assert why_of_a_web_page([("host", host) for host in hosts], LOOPBACK, (), has_certificate=False) is not None


@pytest.mark.parametrize(
    ("host", "origin", "has_certificate", "is_refused"),
    [
        ("127.0.0.1:7079", "http://127.0.0.1:7079", False, False),
        ("localhost:7079", "http://LOCALHOST:7079", False, False),
        ("dash:7079", "https://dash:7079", True, False),
        ("127.0.0.1:7079", "", False, False),
        ("127.0.0.1:7079", "https://127.0.0.1:7079", False, True),
        ("127.0.0.1:7079", "http://127.0.0.1:7079", True, True),
        ("127.0.0.1:7079", "http://127.0.0.1:7078", False, True),
        ("127.0.0.1:7079", "http://localhost:7079", False, True),
        ("127.0.0.1:7079", "http://page.example", False, True),
        ("127.0.0.1:7079", "null", False, True),
        ("page.example:7079", "http://page.example:7079", False, True),
        ("", "http://127.0.0.1:7079", False, True),
    ],
)
def test_a_server_with_pages_answers_its_own_alone(
    host: str, origin: str, has_certificate: bool, is_refused: bool
) -> None:
    headers = [("host", host)] if host else []
    headers += [("origin", origin)] if origin else []
    why = why_of_a_web_page(headers, LOOPBACK, (), has_certificate=has_certificate, own_pages=True)
    assert (why is not None) == is_refused
    twice = [*headers, ("origin", "http://page.example")]
    assert why_of_a_web_page(twice, LOOPBACK, (), has_certificate=has_certificate, own_pages=True) is not None
