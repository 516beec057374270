"""Checks that a client and a scheduler understand each other. Pure."""

from __future__ import annotations

from importlib import metadata

from callsheet.client.errors import RefusalCode, RefusedError, refused
from callsheet.v1 import client_service_pb2
from callsheet.v1.contract import CONTRACT, OLDEST_CONTRACT, since, unknown_in
from google.protobuf.message import Message


def greeting() -> client_service_pb2.GetServerInfoRequest:
    """Returns the first request of a client."""
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
    if info.contract < OLDEST_CONTRACT:
        rule = (
            f"the scheduler at {target} is older than this client, which needs contract {OLDEST_CONTRACT}: upgrade it"
        )
        return _refused(info.contract, rule)
    if info.oldest_contract > CONTRACT:
        rule = f"the scheduler at {target} serves clients from contract {info.oldest_contract}: upgrade this client"
        return _refused(CONTRACT, rule)
    return None


def not_understood(target: str, message: Message, contract: int) -> RefusedError | None:
    """Returns why a scheduler that speaks a contract would not understand all of a message; None if it does.

    It would drop what it does not know, and then say that all went well.
    """
    name = unknown_in(message, contract) if contract < CONTRACT else None
    if name is None:
        return None
    rule = f"came with contract {since(name)}, and the scheduler at {target} speaks {contract}: upgrade it"
    return refused(RefusalCode.UNIMPLEMENTED, field=name.removeprefix("callsheet.v1."), value="", rule=rule)


def _refused(contract: int, rule: str) -> RefusedError:
    return refused(RefusalCode.FAILED_PRECONDITION, field="contract", value=str(contract), rule=rule)
