"""The dashboard of a stack: whether there is one, where it listens, and what it is told."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from callsheet.dashboard.settings import DashboardSettings
from callsheet.deploy.gateway_process import with_port
from callsheet.deploy.stack_settings import AUTO_DASHBOARD, StackSettings
from callsheet.options.declaration import command_line

# What it needs of its extra.
_MODULES: Final = ("starlette", "uvicorn", "httptools", "jinja2", "structlog")


def dashboard_listen(settings: StackSettings) -> str | None:
    """Returns where the dashboard of a stack listens, with its port; None where there is none.

    Left to itself there is one if its extra is installed. It takes the second port after the scheduler's, or a free one
    where that is taken.
    """
    if settings.dashboard is None:
        return None
    if settings.dashboard != AUTO_DASHBOARD:
        return with_port(settings.dashboard)
    if not all(map(find_spec, _MODULES)):
        return None
    host, _, port = settings.listen.rpartition(":")
    return with_port(f"{host}:{int(port) + 2 if 0 < int(port) < 0xFFFF - 1 else 0}", or_free=True)


def dashboard_arguments(settings: StackSettings, listen: str, scheduler: str) -> list[str]:
    """Returns the command line of a stack's dashboard, after `callsheet`.

    Args:
        settings: The stack's.
        listen: Where it is to listen.
        scheduler: Where it dials the scheduler.
    """
    told = {
        "scheduler": scheduler,
        "listen": listen,
        "tls_cert": settings.access.tls_cert,
        "tls_key": settings.access.tls_key,
        "insecure": settings.access.insecure or None,
        "host_names": settings.access.host_names or None,
    }
    return ["dashboard", *command_line(DashboardSettings, told)]


def dashboard_environment(settings: StackSettings) -> dict[str, str]:
    """Returns the variables that a stack's dashboard calls the scheduler with. Each viewer has a token, and it none."""
    if settings.access.tls_cert is not None and settings.tls_ca is not None:
        return {"CALLSHEET_TLS_CA": settings.tls_ca}
    return {}
