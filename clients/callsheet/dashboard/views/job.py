"""One job: its settings, its actions by state, and where its pages are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from callsheet.client.errors import NotFoundError
from callsheet.dashboard.blocks import Cell, Facts, Table, View, WebForm, count, link
from callsheet.dashboard.plain_text import plain_line
from callsheet.dashboard.viewer import Asked
from callsheet.dashboard.views.closed_jobs import closed_jobs_table
from callsheet.dashboard.views.now import failures_table
from callsheet.dashboard.views.past import cost_table
from callsheet.dashboard.views.stuck import client_sentence
from callsheet.dashboard.views.trajectories import trajectories_view
from callsheet.dashboard.words import duration, enum_name, number
from callsheet.v1 import admin_service_pb2, client_service_pb2, job_pb2


async def look(asked: Asked) -> View:
    """Asks for an open job, or for what is kept of a closed one."""
    name = asked.needed("job")
    prices = (await asked.source.get_server_info()).prices
    try:
        found = await asked.source.list_jobs(client_service_pb2.ListJobsRequest(job_id=name))
    except NotFoundError:
        request = admin_service_pb2.ListTrajectoryHistoryRequest(job_id=name)
        left = trajectories_view(name, await asked.source.list_trajectory_history(request), asked.now)
        newest = admin_service_pb2.ListClosedJobsRequest(job_id=name, page_size=1)
        return closed_view(name, (await asked.source.list_closed_jobs(newest)).jobs, left, prices)
    job, spec = found.jobs[0], found.jobs[0].spec
    oldest = link("stuck", job=name).href
    rows = [(plain_line(state), count(number(times), oldest)) for state, times in sorted(job.actions.items())]
    facts: list[tuple[str, Cell | str]] = [
        ("trajectories open", Cell(number(job.open_trajectories), link("trajectories", job=name).href)),
        ("not begun yet", number(job.waiting_trajectories)),
        ("newest step", Cell(str(job.policy_version), link("step", job=name, version=str(job.policy_version)).href)),
        ("class", enum_name(job_pb2.PriorityClass, spec.priority_class)),
        ("share", number(spec.share or 1)),
        ("client", client_sentence(job).removeprefix("Its client: ")),
        ("forgotten actions", number(job.forgotten_actions)),
        ("dead sandboxes", Cell(number(job.dead_sandboxes), tone="bad" if job.dead_sandboxes else "")),
        ("detached", "yes" if spec.detached else "no"),
    ]
    if job.HasField("idle_closes_in"):
        facts.append(("closed as idle in", duration(job.idle_closes_in.seconds)))
    blocks: list[object] = [
        Facts(facts),
        Table("Actions by state", ("state", "actions"), rows, "there was none yet"),
        failures_table([job]),
        cost_table("What it cost until now", job.cost, prices),
    ]
    if asked.viewer.is_offered_acts:
        blocks.append(WebForm("/close", "Close this job\N{HORIZONTAL ELLIPSIS}", hidden={"job": name}))
    waits = number(job.actions.get("queued", 0))
    return View(plain_line(name), blocks, f"{waits} actions wait.", trail=(Cell("Jobs", "/now"),))


def closed_view(
    name: str, newest: Sequence[admin_service_pb2.ClosedJob], left: View, prices: Mapping[str, float]
) -> View:
    """Returns the page of a closed job: what it was, above the trajectories that are left of it."""
    costs = [cost_table("What it cost", job.cost, prices) for job in newest]
    blocks = [closed_jobs_table(newest, prices), *costs, *left.blocks]
    return View(plain_line(name), blocks, refresh_s=0, trail=(Cell("Closed jobs", "/closed"),))
