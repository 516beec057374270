"""Progress of `callsheet up` and its stack, a line each on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from callsheet.cli.log_command import last_lines, readable
from callsheet.cli.output import describe

if TYPE_CHECKING:
    from callsheet.client.settings import ClientOptions

_QUIET_S = 0.5
_POLL_S = 1.0
_ASK_TIMEOUT_S = 5.0


class UpProgress:
    """A `StackWatcher` that shows what it is told."""

    def __init__(
        self,
        show: Callable[[str], None],
        announce: Callable[[str, str | None, str | None], None],
        options: Callable[[], ClientOptions | None] = lambda: None,
    ) -> None:
        """Takes where to show things.

        Args:
            show: Shows a line of progress.
            announce: Told the address, and where gateway and dashboard will be, once the scheduler serves.
            options: How to ask the scheduler what is left.
        """
        self._options = options
        self._show = show
        self._announce = announce
        self._dashboard = ""

    def scheduler_serves(self, address: str, gateway_url: str | None, dashboard_url: str | None) -> None:
        """See `StackWatcher`."""
        self._announce(address, gateway_url, dashboard_url)

    def gateway_serves(self, url: str) -> None:
        """See `StackWatcher`."""
        self._show(f"the gateway serves {url}/v1 to OpenAI's clients and {url} to Anthropic's")

    def dashboard_serves(self, url: str) -> None:
        """See `StackWatcher`."""
        self._dashboard = f"the dashboard is at {url}"
        self._show(self._dashboard)

    def manager_registered(self, role: str, took_s: float, missing: Sequence[str]) -> None:
        """See `StackWatcher`. The dashboard's address is the last line, though a manager came after it."""
        self._show(registered_line(role, took_s, missing))
        if self._dashboard and not missing:
            self._show(self._dashboard)

    def still_waiting(self, waited_s: float, logs: Mapping[str, Path | None]) -> None:
        """See `StackWatcher`."""
        for role, log in logs.items():
            self._show(still_waiting_line(role, waited_s, log))

    async def watch_drain(self, address: str, limit_s: float) -> None:
        """See `StackWatcher`. Shows what is left once a second, as far as the scheduler tells."""
        ends = time.monotonic() + limit_s
        # Most drains are over before there is anything to show.
        await anyio.sleep(_QUIET_S)
        try:
            await self._show_what_is_left(address, ends)
        except Exception as error:  # Progress is all that is lost.
            self._show(f"stopping; the scheduler does not say what is left ({describe(error)})")

    async def _show_what_is_left(self, address: str, ends: float) -> None:
        from callsheet.client.admin import AdminClient

        async with AdminClient(address, self._options()) as admin:
            while True:
                with anyio.fail_after(_ASK_TIMEOUT_S):
                    status = await admin.status()
                attempts = sum(manager.attempts for manager in status.managers)
                if attempts:
                    self._show(drain_line(attempts, ends - time.monotonic()))
                await anyio.sleep(_POLL_S)


def registered_line(role: str, took_s: float, missing: Sequence[str]) -> str:
    """Prints that a manager is ready, and which ones are not."""
    rest = f"waiting for {', '.join(missing)}" if missing else "all managers are ready"
    return f"{role} manager is ready after {took_s:.1f} s; {rest}"


def still_waiting_line(role: str, waited_s: float, log: Path | None) -> str:
    """Prints that a process is late, with the last line that it logged, if any."""
    late = f"{role} does not serve yet after {waited_s:.0f} s"
    if log is None or not log.exists():
        return late
    last = [readable(line, name) for name, line in last_lines({role: log}, {log: log.stat().st_size}, [], 1)]
    return f"{late}; its log is {log} and ends with: {last[0]}" if last else f"{late}; its log is {log}, and empty"


def drain_line(attempts: int, left_s: float) -> str:
    """Prints the work for which a drain waits."""
    return f"waiting for {attempts} attempt{'s' if attempts != 1 else ''}, {max(left_s, 0.0):.0f} s left"
