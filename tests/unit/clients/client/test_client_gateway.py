"""Where a client's gateway is, as a place that a sandbox may reach."""

from __future__ import annotations

import pytest
from callsheet.client import GATEWAY_PLACE, ClientOptions
from callsheet.client.gateway import named_places


@pytest.mark.parametrize(
    ("gateway", "place"),
    [
        (None, "127.0.0.1:7078"),
        ("http://localhost:7078/", "localhost:7078"),
        ("https://gateway.example.org", "gateway.example.org:443"),
        ("http://gateway.example.org/under/this", "gateway.example.org:80"),
        ("http://[2001:db8::1]:7078", "[2001:db8::1]:7078"),
    ],
)
def test_the_gateways_name_becomes_its_place(gateway: str | None, place: str) -> None:
    options = ClientOptions(gateway=gateway)
    assert named_places(("example.org:443", GATEWAY_PLACE), options) == ("example.org:443", place)
