"""Which peers of a server on the loopback are programs in sandboxes, and of which trajectory."""

from __future__ import annotations

import pytest
from callsheet.credentials.sandboxes import is_sandbox, sandbox_source

SOURCE = sandbox_source("job", "trajectory")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (SOURCE, True),
        (f"::ffff:{SOURCE}", True),
        ("127.64.0.0", True),
        ("127.127.255.255", True),
        ("127.128.0.0", False),
        ("127.0.0.1", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("testclient", False),
        ("", False),
    ],
)
def test_sandboxes_are_known_by_their_source(host: str, expected: bool) -> None:
    assert is_sandbox(host) == expected


def test_each_trajectory_has_a_source_of_its_own() -> None:
    assert sandbox_source("job", "trajectory") == SOURCE
    others = [
        ("job", "trajectory-2"),
        ("job-2", "trajectory"),
        ("jobt", "rajectory"),
        ("", "job\ntrajectory"),
        ("", "\udc80"),
    ]
    sources = {sandbox_source(*each) for each in others}
    assert len(sources | {SOURCE}) == len(others) + 1
    assert all(map(is_sandbox, sources))
