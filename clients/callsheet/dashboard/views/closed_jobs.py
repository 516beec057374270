"""Closed jobs: when they ran, why they were closed, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from callsheet.client import Cost
from callsheet.dashboard.blocks import Cell, Table, View, count, link
from callsheet.dashboard.plain_text import plain_line
from callsheet.dashboard.viewer import Asked
from callsheet.dashboard.words import NOTHING, clock_time, duration, number, seconds_of, units
from callsheet.v1 import admin_service_pb2

_MOST: Final = 50
_REASON: Final = 300
_UNITS: Final = 120


async def look(asked: Asked) -> View:
    """Asks for one page of closed jobs, the newest close first."""
    request = admin_service_pb2.ListClosedJobsRequest(page_size=_MOST, page_token=asked.of("after"))
    prices = (await asked.source.get_server_info()).prices
    return closed_jobs_view(await asked.source.list_closed_jobs(request), prices)


def closed_jobs_view(told: admin_service_pb2.ListClosedJobsResponse, prices: Mapping[str, float]) -> View:
    """Returns the page."""
    more = link("closed", "Older ones", after=told.next_page_token) if told.next_page_token else None
    return View("Closed jobs", [closed_jobs_table(told.jobs, prices, more)], refresh_s=0, trail=(Cell("Jobs", "/now"),))


def closed_jobs_table(
    jobs: Iterable[admin_service_pb2.ClosedJob], prices: Mapping[str, float], more: Cell | None = None
) -> Table:
    """Returns closed jobs in the order given."""
    rows = []
    for job in jobs:
        opened, closed = seconds_of(job.opened), seconds_of(job.closed)
        rows.append(
            (
                # The pages of an id are those of its newest job.
                Cell(f"{plain_line(job.job_id)}, opened again since") if job.reopened else link("job", job=job.job_id),
                clock_time(opened),
                clock_time(closed),
                count(duration(max(closed - opened, 0.0))),
                plain_line(job.reason, _REASON),
                plain_line(units(job.cost.held), _UNITS),
                plain_line(units(job.cost.used), _UNITS),
                count(number(Cost(dict(job.cost.held), dict(job.cost.used)).money(prices)) if prices else NOTHING),
            )
        )
    columns = ("job", "opened (UTC)", "closed (UTC)", "lasted", "why it was closed", "held", "used", "money")
    return Table("Closed jobs, the newest close first", columns, rows, "none is kept", more)
