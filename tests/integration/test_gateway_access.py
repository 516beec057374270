"""Who may do what at a gateway whose scheduler asks for tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from callsheet.client import AccessDeniedError, Client
from callsheet.client.admin import AdminClient
from callsheet.client.settings import ClientOptions
from callsheet.gateway.server import callers
from callsheet.gateway.server.settings import GatewaySettings
from callsheet.scheduler.access.identity import Scope

from tests.support.gateways import CHAT, RunningGateway, chat, running_gateway
from tests.support.guarded_service import Guarded, guarded_scheduler
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
# No engine is there: whoever may call is told to come again.
_LET_IN = 503


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    async with guarded_scheduler(tmp_path_factory.mktemp("guarded")) as running:
        yield running


@pytest.fixture(scope="module")
async def gateway(guarded: Guarded, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    token, data_dir = guarded.issue(Scope.GATEWAY), tmp_path_factory.mktemp("gateway")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALLSHEET_TOKEN", token)
        async with running_gateway(
            guarded.address, "mine", data_dir, token=guarded.issue(Scope.JOB, "mine")
        ) as running:
            yield running


async def status_of(gateway: RunningGateway, key: str, trajectory_id: str = "", job_id: str = "") -> int:
    named = {"x-callsheet-trajectory": trajectory_id} if trajectory_id else {}
    named |= {"x-callsheet-job": job_id} if job_id else {}
    return (await gateway.post(CHAT, chat("Hello"), key, named)).status


async def test_only_whose_job_it_is_may_call(guarded: Guarded, gateway: RunningGateway) -> None:
    for scope, subject, status in (
        (Scope.JOB, "mine", _LET_IN),
        (Scope.ADMIN, "", _LET_IN),
        (Scope.JOB, "another", 403),
        (Scope.READ_ONLY, "", 403),
        (Scope.MANAGER, "mine", 403),
        (Scope.GATEWAY, "", 403),
    ):
        assert await status_of(gateway, guarded.issue(scope, subject), "t", "mine") == status, scope
    for stranger in ("", "mine", "mine/t", "callsheet_000000000000_" + "0" * 64, "not a token \u00e9", "cs-x.y"):
        assert await status_of(gateway, stranger, "t", "mine") == 401, stranger


async def test_a_token_of_a_job_names_it(guarded: Guarded, gateway: RunningGateway) -> None:
    assert await status_of(gateway, guarded.issue(Scope.JOB, "mine"), "of-token") == _LET_IN
    assert await status_of(gateway, guarded.issue(Scope.ADMIN), "of-token") == 400
    # Its first call opened the trajectory.
    assert [each.trajectory_id for each in await gateway.job.trajectories() if each.trajectory_id == "of-token"]


async def test_a_trainer_hands_out_keys_of_its_own_job_alone(guarded: Guarded, gateway: RunningGateway) -> None:
    trajectory = gateway.job.trajectory("keyed")
    await trajectory.open()
    access = await trajectory.gateway(temperature=1.0)
    assert access.base_url == f"{gateway.url}/v1"
    assert await status_of(gateway, access.api_key) == _LET_IN
    for scope, subject in ((Scope.JOB, "another"), (Scope.READ_ONLY, "")):
        options = ClientOptions(gateway=gateway.url, token=guarded.issue(scope, subject))
        async with Client(guarded.address, options) as client:
            with pytest.raises(AccessDeniedError):
                await client.job("mine").trajectory("keyed").gateway()
            with pytest.raises(AccessDeniedError):
                await client.job("mine").trajectory("keyed").samples()


@pytest.mark.parametrize("ends", ["revoked", "expired"])
async def test_a_key_ends_with_the_token_that_it_was_issued_to(
    guarded: Guarded, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(callers, "_REMEMBERED_S", 0.0)
    token = guarded.issue(Scope.JOB, "mine", 2.0 if ends == "expired" else None)
    keys = {}
    for issued_to, shown in (("this", token), ("another", guarded.issue(Scope.JOB, "mine"))):
        async with Client(guarded.address, ClientOptions(gateway=gateway.url, token=shown)) as client:
            trajectory = client.job("mine").trajectory(f"of-{ends}")
            await trajectory.open()
            keys[issued_to] = (await trajectory.gateway()).api_key
    assert await status_of(gateway, keys["this"]) == _LET_IN
    if ends == "revoked":
        guarded.revoke(token)
    else:
        await until(lambda: guarded.is_over(token))
    answer = await gateway.post(CHAT, chat("Hello"), keys["this"])
    assert (answer.status, "ended with the token" in str(answer.body)) == (401, True)
    # Others of the same job go on.
    assert await status_of(gateway, keys["another"]) == _LET_IN


async def test_others_tokens_are_told_to_gateways_alone(guarded: Guarded) -> None:
    good, over = guarded.issue(Scope.JOB, "mine"), guarded.issue(Scope.JOB, "mine")
    guarded.revoke(over)
    for scope, subject in ((Scope.GATEWAY, ""), (Scope.ADMIN, ""), (Scope.JOB, "mine"), (Scope.MANAGER, "m")):
        may = scope in (Scope.GATEWAY, Scope.ADMIN)
        async with AdminClient(guarded.address, ClientOptions(token=guarded.issue(scope, subject))) as client:
            if may:
                assert (await client.identity(callers.public_part(good))).scope == scope.value
            for token in (over, "callsheet_000000000000_0", *([] if may else [good])):
                with pytest.raises(AccessDeniedError, match="revoked" if may else "takes a token of scope"):
                    await client.identity(callers.public_part(token))


async def test_a_key_is_no_token_of_the_scheduler(guarded: Guarded, gateway: RunningGateway) -> None:
    trajectory = gateway.job.trajectory("no-token")
    await trajectory.open()
    key = (await trajectory.gateway()).api_key
    async with Client(guarded.address, ClientOptions(token=key)) as thief:
        with pytest.raises(AccessDeniedError):
            await thief.jobs()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
async def test_an_address_that_others_reach_takes_tls(listen: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without TLS: give --tls-cert with --tls-key, or --insecure"):
        GatewaySettings(listen=listen, data_dir=tmp_path)
    open_to_all = GatewaySettings(listen=listen, data_dir=tmp_path, insecure=True)
    assert "generate in every trajectory" in str(open_to_all.exposure(asks_for_tokens=False))
