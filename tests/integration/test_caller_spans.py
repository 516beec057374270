"""Who calls a server of HTTP below a span of its own finds what the server submitted for it below that span."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from callsheet.deploy.roles import Role

from tests.support.gateways import CHAT, chat, running_gateway, scripted_stack
from tests.support.span_collector import Collector, collecting
from tests.support.swerex_servers import TOKEN, facade_process, stack_of_sandboxes

pytestmark = pytest.mark.anyio
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def sending_to(receiver: Collector) -> Mapping[Role, tuple[str, ...]]:
    return {Role.SCHEDULER: ("--otlp-endpoint", receiver.url)}


def parents_of(receiver: Collector, name: str) -> list[tuple[str, str]]:
    """Trace and parent of each span of this name, by their begin."""
    found = sorted((each for each in receiver.spans() if each.name == name), key=lambda span: span.start_time_unix_nano)
    return [(each.trace_id.hex() if each.parent_span_id else "", each.parent_span_id.hex()) for each in found]


async def test_a_call_of_the_gateway_is_below_its_callers_span(tmp_path: Path) -> None:
    with collecting() as receiver:
        async with (
            scripted_stack(tmp_path, arguments=sending_to(receiver)) as scheduler,
            running_gateway(scheduler, "j", tmp_path / "gateway") as gateway,
            gateway.job.trajectory("t") as trajectory,
        ):
            key = (await trajectory.gateway()).api_key
            given: list[dict[str, str]] = [
                {"traceparent": PARENT},
                {},
                {"TraceParent": "a broken one"},
                {"traceparent": f"00-{TRACE}-{SPAN}-00"},
            ]
            for number, headers in enumerate(given):
                answer = await gateway.post(CHAT, chat(f"How is it, {number}?"), key, headers)
                assert answer.status == 200, answer.body
        assert parents_of(receiver, "generate gateway") == [(TRACE, SPAN), ("", ""), ("", "")]


async def test_what_a_facade_runs_is_below_its_callers_span(tmp_path: Path) -> None:
    async def post(session: aiohttp.ClientSession, verb: str, body: Any, **headers: str) -> None:
        given = {"X-API-Key": TOKEN, **headers}
        async with session.post(f"http://{address}/mine/{verb}", json=body, headers=given) as answer:
            assert answer.status == 200, await answer.text()

    with collecting() as receiver:
        async with (
            stack_of_sandboxes(tmp_path, arguments=sending_to(receiver)) as stack,
            facade_process(stack.address) as facade,
            aiohttp.ClientSession() as session,
        ):
            address = facade.facts["address"]
            await post(session, "execute", {"command": ["true"]}, traceparent=PARENT)
            await post(session, "execute", {"command": ["true"]})
        assert parents_of(receiver, "env_reset env_reset") == [(TRACE, SPAN)]
        steps = [each for each in {span.name for span in receiver.spans()} if each.startswith("env_step")]
        assert [parents_of(receiver, each) for each in steps] == [[(TRACE, SPAN), ("", "")]]
