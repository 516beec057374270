"""Finds a server and returns its driver."""

from __future__ import annotations

from functools import partial

from callsheet.managers.inference.http_engine.attach import attach
from callsheet.managers.inference.http_engine.client import EngineHttp, Where
from callsheet.managers.inference.openai_engine.driver import OpenAIDriver
from callsheet.managers.inference.openai_engine.server import read_server
from callsheet.managers.inference.openai_engine.settings import OpenAISettings


def attach_openai(
    settings: OpenAISettings, url: Where, api_key: str | None = None, *, start_version: int = 0
) -> OpenAIDriver:
    """Waits for a server, and returns a driver for what it turns out to be.

    Raises:
        EngineError: There is no such server in time.
    """
    connect = partial(EngineHttp, url, api_key)
    server = attach(connect, lambda http: read_server(http, settings), settings.attach_timeout)
    return OpenAIDriver(connect(), server, start_version=start_version)
