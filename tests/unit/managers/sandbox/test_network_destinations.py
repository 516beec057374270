"""Places on the network: how they are written, and which of them cover which."""

from __future__ import annotations

import pytest
from callsheet.managers.sandbox.network.addresses import is_public
from callsheet.managers.sandbox.network.destinations import Destination, covered, network_words


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("example.org:443", "example.org", 443),
        ("Example.org.:443", "example.org", 443),
        ("*.example.com:8443", "*.example.com", 8443),
        ("*:443", "*", 443),
        ("192.0.2.7:80", "192.0.2.7", 80),
        ("[2001:DB8::1]:443", "2001:db8::1", 443),
        ("localhost:7078", "127.0.0.1", 7078),
        ("_srv.example.com:1", "_srv.example.com", 1),
    ],
)
def test_places_are_read(text: str, host: str, port: int) -> None:
    place = Destination.parse(text)
    assert (place.host, place.port) == (host, port)
    assert Destination.parse(str(place)) == place


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "example.org",
            "example.org:",
            "example.org:0",
            "example.org:65536",
            "example.org:4x",
            ":443",
            "a..b:1",
            "-a:1",
            "a b:1",
        ),
        *("*a:1", "*.*:1", "a.*:1", "**:1", "2001:db8::1:443", "[192.0.2.7]:80", "[example.org]:443", "ü.de:1"),
        "a/b:1",
        *(f"{'a' * 64}.de:1", f"{'a.' * 127}de:1", "a\n:1", "a:1\n", "*.192.0.2.7.:99999"),
    ],
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        Destination.parse(text)


@pytest.mark.parametrize(
    ("allowed", "wanted", "answer"),
    [
        ("example.org:443", "example.org:443", True),
        ("example.org:443", "example.org:80", False),
        ("example.org:443", "files.example.org:443", False),
        ("example.org:443", "evil-example.org:443", False),
        ("*.example.org:443", "files.example.org:443", True),
        ("*.example.org:443", "a.files.example.org:443", True),
        ("*.example.org:443", "example.org:443", False),
        ("*.example.org:443", "evilexample.org:443", False),
        ("*.example.org:443", "*.files.example.org:443", True),
        ("*.files.example.org:443", "*.example.org:443", False),
        ("*:443", "anything.example:443", True),
        ("*:443", "*.example:443", True),
        ("*:443", "192.0.2.7:443", False),
        ("192.0.2.7:443", "192.0.2.7:443", True),
        ("*.2.7:443", "192.0.2.7:443", False),
    ],
)
def test_which_destination_covers_which(allowed: str, wanted: str, answer: bool) -> None:
    assert (
        covered(Destination.parse(wanted), [Destination.parse("other.example:1"), Destination.parse(allowed)]) is answer
    )


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "198.18.0.1"),
    ],
)
def test_private_and_special_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_public_addresses_are_public(monkeypatch: pytest.MonkeyPatch) -> None:
    from callsheet.managers.sandbox.network import addresses

    assert is_public("1.1.1.1")
    monkeypatch.setattr(addresses, "_own_addresses", lambda: {"1.1.1.1"})
    assert not is_public("1.1.1.1")


def test_the_registration_names_what_may_be_reached() -> None:
    assert network_words([]) == "none but a loopback of its own"
    assert network_words([Destination("example.org", 443)]).endswith("example.org:443")
