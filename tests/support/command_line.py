"""Commands of `callsheet` in the process of the test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from callsheet.cli.app import app
from callsheet.client.loop_thread import loop_thread
from typer.testing import CliRunner, Result


def invoke(*arguments: str, **environment: str) -> Result:
    """Runs a command. Its event loop stays open, as gRPC asks (`tests.support.grpc_loops`)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anyio, "run", _run)
        return CliRunner().invoke(app, list(arguments), env=environment)


def _run(function: Callable[..., Awaitable[Any]], *arguments: Any, **_: Any) -> Any:
    async def call() -> Any:
        return await function(*arguments)

    return loop_thread("tests: command line").run(call())
