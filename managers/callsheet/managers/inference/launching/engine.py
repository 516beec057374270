"""An engine behind HTTP from its settings: a server that somebody runs, or one that is launched."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from callsheet.managers.inference.driver import EngineCapabilities, EngineDriver
from callsheet.managers.inference.engine_kind import UnloadedEngine
from callsheet.managers.inference.launching.command import (
    LaunchNeeds,
    LaunchOrder,
    command_template,
    server_environment,
    server_name,
)
from callsheet.managers.inference.settings import InferenceSettings

if TYPE_CHECKING:
    from callsheet.managers.inference.http_engine.client import Where
    from callsheet.managers.inference.http_engine.driver import HttpEngineDriver

NOT_ATTACHED = EngineCapabilities(
    update_modes=frozenset(),
    version_spans=False,
    prefix_cache=False,
    batch_invariant=False,
    stop_texts=False,
    log_probs_modes=frozenset(),
    abort=False,
    seeds=False,
)
"""Abilities that are certain before a server was found."""


Attach = Callable[["Where", float], "HttpEngineDriver"]
"""Waits for a server, at most so many seconds, and returns its driver."""


def served_engine(
    name: str, settings: InferenceSettings, needs: LaunchNeeds, timeout_s: float, attach: Attach
) -> UnloadedEngine:
    """Checks the settings of a manager of one server.

    Args:
        name: Of the kind of engine.
        settings: The manager's.
        needs: What the driver needs of a server that is launched.
        timeout_s: The longest time from a start until the server is ready.
        attach: Finds the server.

    Raises:
        ValueError: A setting breaks its rule.
    """
    if not settings.launches:
        url = settings.server_url
        return UnloadedEngine(NOT_ATTACHED, {"engine": name, "url": url}, lambda: attach(url, timeout_s), attached=True)
    order = launch_order(settings, needs, timeout_s)
    told = {"engine": name, "server": "launched", "log": order.log_path}
    return UnloadedEngine(NOT_ATTACHED, told, lambda: _launch(order, attach), attached=True)


def launch_order(settings: InferenceSettings, needs: LaunchNeeds, timeout_s: float) -> LaunchOrder:
    """How a manager's server is to be run.

    Raises:
        ValueError: A setting breaks its rule.
    """
    name = server_name(settings.launch_name)
    return LaunchOrder(
        command=command_template(settings.launch_command, needs),
        name=f"callsheet-{name}",
        log_path=str(settings.launch_logs / f"{name}.log"),
        stop_command=tuple(shlex.split(settings.launch_stop or "")),
        environment=server_environment(os.environ, needs),
        start_timeout_s=timeout_s,
    )


def _launch(order: LaunchOrder, attach: Attach) -> EngineDriver:
    from callsheet.managers.inference.launching.server import LaunchedServer

    server = LaunchedServer(order)
    try:
        # The supervisor bounds each start, and how many there are.
        driver = attach(lambda: server.url, math.inf)
        driver.own_server(server)
    except BaseException:
        server.stop_and_wait()
        raise
    return driver
