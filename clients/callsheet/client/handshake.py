"""Whether a client and a scheduler understand each other. Pure."""

from __future__ import annotations

from importlib import metadata

from callsheet.client.errors import RefusalCode, RefusedError, refused
from callsheet.v1 import client_service_pb2
from callsheet.v1.contract import CONTRACT


def greeting() -> client_service_pb2.GetServerInfoRequest:
    """Returns what a client says first."""
    try:
        version = metadata.version("callsheet")
    except metadata.PackageNotFoundError:
        version = ""
    return client_service_pb2.GetServerInfoRequest(client_version=version)


def mismatch(target: str, info: client_service_pb2.GetServerInfoResponse) -> RefusedError | None:
    """Returns why this client cannot work with a scheduler; None if it can.

    Args:
        target: The scheduler's address.
        info: What it says of itself.
    """
    if info.contract < CONTRACT:
        rule = f"the scheduler at {target} is older than this client, which needs contract {CONTRACT}: upgrade it"
        return _refused(info.contract, rule)
    if info.oldest_contract > CONTRACT:
        rule = f"the scheduler at {target} serves clients from contract {info.oldest_contract}: upgrade this client"
        return _refused(CONTRACT, rule)
    return None


def _refused(contract: int, rule: str) -> RefusedError:
    return refused(RefusalCode.FAILED_PRECONDITION, field="contract", value=str(contract), rule=rule)
