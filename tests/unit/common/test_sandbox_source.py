"""Which peers of a server on the loopback are programs in sandboxes."""

from __future__ import annotations

import pytest
from callsheet.credentials.sandboxes import SANDBOX_SOURCE, is_sandbox


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (SANDBOX_SOURCE, True),
        (f"::ffff:{SANDBOX_SOURCE}", True),
        ("127.0.0.1", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("testclient", False),
        ("", False),
    ],
)
def test_sandboxes_are_known_by_their_source(host: str, expected: bool) -> None:
    assert is_sandbox(host) == expected
