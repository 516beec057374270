"""Finds a server and returns its driver."""

from __future__ import annotations

from functools import partial

from callsheet.managers.inference.http_engine.attach import attach
from callsheet.managers.inference.http_engine.client import EngineHttp, Where
from callsheet.managers.inference.vllm_engine.driver import VLLMDriver
from callsheet.managers.inference.vllm_engine.server import read_server
from callsheet.managers.inference.vllm_engine.settings import VLLMSettings


def attach_vllm(
    settings: VLLMSettings, url: Where, api_key: str | None = None, *, start_version: int = 0
) -> VLLMDriver:
    """Waits for a server, and returns a driver for what it turns out to be.

    Raises:
        EngineError: There is no such server in time.
    """
    connect = partial(EngineHttp, url, api_key)
    server = attach(connect, lambda http: read_server(http, settings), settings.attach_timeout)
    return VLLMDriver(connect(), server, settings, start_version=start_version)
