"""Refused calls fill no log: a line for each peer now and then says how many there were."""

from __future__ import annotations

from callsheet.scheduler.service.limits import refusal_log
from callsheet.scheduler.service.limits.refusal_log import INTERVAL_S, RefusalLog
from structlog.testing import capture_logs


def told(log: RefusalLog, *peers: str, event: str = "call_refused") -> list[tuple[str, object]]:
    """Peer of each line, and how many it says were only counted."""
    with capture_logs() as lines:
        for peer in peers:
            log.warn(event, peer, method="m", reason="r")
    return [(str(line["peer"]), line.get("not_told")) for line in lines]


def test_a_peer_that_goes_on_is_counted() -> None:
    now = [0.0]
    log = RefusalLog(lambda: now[0])
    # Another port is another connection of the same peer.
    assert told(log, *(f"ipv4:10.0.0.1:{port}" for port in range(50))) == [("ipv4:10.0.0.1:0", None)]
    assert told(log, "ipv4:10.0.0.2:1") == [("ipv4:10.0.0.2:1", None)]
    assert told(log, "ipv4:10.0.0.1:1", event="stream_refused") == [("ipv4:10.0.0.1:1", None)]
    now[0] += INTERVAL_S
    assert told(log, "ipv4:10.0.0.1:1", "ipv4:10.0.0.1:1") == [("ipv4:10.0.0.1:1", 49)]
    now[0] += INTERVAL_S
    assert told(log, "ipv4:10.0.0.1:1") == [("ipv4:10.0.0.1:1", 1)]


def test_only_so_many_peers_are_remembered() -> None:
    log = RefusalLog(lambda: 0.0)
    told(log, *(f"ipv4:10.0.{number >> 8}.{number & 255}:1" for number in range(refusal_log.MAX_PEERS_TOLD + 20)))
    assert len(log._told) == refusal_log.MAX_PEERS_TOLD
