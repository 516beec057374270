"""Finds a server and returns its driver."""

from __future__ import annotations

from functools import partial

import structlog
from callsheet.managers.inference.http_engine.attach import attach
from callsheet.managers.inference.http_engine.client import EngineHttp, Where
from callsheet.managers.inference.sglang_engine.driver import SGLangDriver
from callsheet.managers.inference.sglang_engine.server import read_server
from callsheet.managers.inference.sglang_engine.settings import SGLangSettings

log = structlog.get_logger(__name__)


def attach_sglang(
    settings: SGLangSettings, url: Where, api_key: str | None = None, *, start_version: int = 0
) -> SGLangDriver:
    """Waits for a server, and returns a driver for what it turns out to be.

    Raises:
        EngineError: There is no such server in time.
    """
    connect = partial(EngineHttp, url, api_key)
    server = attach(connect, lambda http: read_server(http, settings), settings.attach_timeout)
    if server.bounds.vocabulary is None:
        log.warning("the vocabulary is not known: a token id beyond it kills the server; set vocabulary_size", url=url)
    return SGLangDriver(connect(), server, settings, start_version=start_version)
