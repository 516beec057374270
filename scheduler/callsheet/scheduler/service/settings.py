"""Settings of a scheduler process."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Final
from urllib.parse import urlsplit

from callsheet.options.common import DEFAULT_ADDRESS, DataDir, Listen, metrics_address
from callsheet.options.declaration import Setting
from callsheet.scheduler.access.settings import AccessSettings
from callsheet.scheduler.core.words.costs import read_price, read_prices
from callsheet.scheduler.service.limits.settings import LimitSettings

_TRACES: Final = "/v1/traces"


class PlannerChoice(Enum):
    """The planner that decides which actions start.

    ELASTIC: classes by price, with a solver where resources are short. FIRST_COME: in order of arrival, best fit.
    """

    ELASTIC = "elastic"
    FIRST_COME = "first-come"


def collector(text: str) -> str | None:
    """Reads the URL of a collector of spans, with or without the path for traces; None if there is none.

    Raises:
        ValueError: It is neither an http URL nor "none", or it holds credentials.
    """
    if text == "none":
        return None
    try:
        url = urlsplit(text)
        plain = url.scheme in {"http", "https"} and url.hostname and url.port != 0
    except ValueError:
        plain = False
    if not plain or url.query or url.fragment or url.username is not None:
        shown = "a URL with credentials" if "@" in text else repr(text)
        rule = "must be http://HOST:PORT or https://HOST:PORT; credentials belong in OTEL_EXPORTER_OTLP_HEADERS"
        raise ValueError(f"{shown} {rule}")
    return text if url.path.endswith(_TRACES) else text.rstrip("/") + _TRACES


def _price(text: str) -> str:
    read_price(text)
    return text


DatabaseUrl = Annotated[
    str | None,
    Setting(
        "SQLAlchemy URL of the journal.",
        variable="CALLSHEET_DATABASE_URL",
        default_text="SQLite in the data directory",
        secret=True,
    ),
]
Prices = Annotated[
    tuple[str, ...],
    Setting(
        "Money for one unit of a resource of costs, such as cpu=0.00001 for a core-second; repeatable.",
        flag="--price",
        metavar="RESOURCE=AMOUNT",
        repeatable=True,
        parse=_price,
    ),
]


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Settings of a scheduler; times in seconds, sizes in bytes.

    Attributes:
        access: Who may call, and how connections are kept private.
        limits: How much there may be, and of one job or peer.
        redis_namespace: Prefix of this scheduler's keys; schedulers that share a Redis need different ones.
        max_journal_backlog: Records waiting for a commit; beyond it streams are not read.
        cancel_grace: How long a manager may take to end an attempt it was told to stop.
        alive_interval: How often the journal is told that a scheduler runs, while a job is open.
        predictor_save_interval: How often what the predictors learned is saved.
        hold_after: How long an action waits before a node is held for it.
        keepalive_interval: How often a peer that says nothing is asked whether it is still there.
        keepalive_timeout: How long it may take to answer; then its streams end.
        shutdown_grace: How long running rpcs may take when the process stops.
    """

    data_dir: DataDir
    listen: Listen = DEFAULT_ADDRESS
    metrics_listen: Annotated[
        str | None,
        Setting(
            "Where /metrics is, for Prometheus; port 0 takes a free one.",
            variable="CALLSHEET_METRICS_LISTEN",
            metavar="HOST:PORT|none",
            default_text="none",
            parse=metrics_address,
        ),
    ] = None
    otlp_endpoint: Annotated[
        str | None,
        Setting(
            "Collector of the spans of finished actions, by OTLP over HTTP, for instance http://127.0.0.1:4318.",
            variable="CALLSHEET_OTLP_ENDPOINT",
            metavar="URL|none",
            default_text="none",
            parse=collector,
        ),
    ] = None
    access: AccessSettings = field(default_factory=AccessSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    database_url: DatabaseUrl = field(default=None, repr=False)
    redis_url: Annotated[
        str | None,
        Setting(
            "Redis for payloads.",
            variable="CALLSHEET_REDIS_URL",
            default_text="files in the data directory",
            secret=True,
        ),
    ] = field(default=None, repr=False)
    redis_namespace: str = "callsheet"
    max_open_actions: Annotated[
        int, Setting("Open actions beyond which submits are refused.", variable="CALLSHEET_MAX_OPEN_ACTIONS", least=1)
    ] = 1_000_000
    max_payload_bytes: Annotated[
        int, Setting("Size of one stored payload.", variable="CALLSHEET_MAX_PAYLOAD_BYTES", least=1)
    ] = 1 << 30
    max_journal_backlog: int = 200_000
    heartbeat_interval: Annotated[
        float, Setting("Seconds between managers' heartbeats.", variable="CALLSHEET_HEARTBEAT_INTERVAL", least=0.01)
    ] = 3.0
    manager_lease: Annotated[
        float,
        Setting("Seconds of silence after which a manager is lost.", variable="CALLSHEET_MANAGER_LEASE", least=0.05),
    ] = 15.0
    cancel_grace: float = 15.0
    job_grace: Annotated[
        float,
        Setting(
            "Seconds for which a job lives on without a client session, unless the job has its own value.",
            variable="CALLSHEET_JOB_GRACE",
            least=0.1,
        ),
    ] = 120.0
    expired_job_lifetime: Annotated[
        float,
        Setting("Seconds after which an expired job is closed.", variable="CALLSHEET_EXPIRED_JOB_LIFETIME", least=0.1),
    ] = 24 * 3600.0
    job_idle_timeout: Annotated[
        float,
        Setting(
            "Seconds without work after which a job is closed, held or not, unless the job has its own value.",
            variable="CALLSHEET_JOB_IDLE_TIMEOUT",
            least=0.1,
        ),
    ] = 7 * 24 * 3600.0
    finished_actions: Annotated[
        int,
        Setting(
            "Most finished actions and closed trajectories of open jobs that are kept.",
            variable="CALLSHEET_FINISHED_ACTIONS",
            least=1,
        ),
    ] = 500_000
    finished_actions_bytes: Annotated[
        int,
        Setting("Most bytes of their outcomes and specs.", variable="CALLSHEET_FINISHED_ACTIONS_BYTES", least=1),
    ] = 4 << 30
    finished_actions_s: Annotated[
        float,
        Setting(
            "Seconds for which they are kept; later a submit under such an id is refused as forgotten.",
            variable="CALLSHEET_FINISHED_ACTIONS_S",
            least=0.1,
        ),
    ] = 24 * 3600.0
    max_buffered: Annotated[
        int,
        Setting(
            "Finished trajectories in a job's buffer beyond which no trajectory begins, unless the job has its own "
            "value.",
            variable="CALLSHEET_MAX_BUFFERED",
            least=1,
        ),
    ] = 4096
    alive_interval: float = 5.0
    predictor_save_interval: float = 30.0
    planner: Annotated[
        PlannerChoice, Setting("Decide by price and solver, or in order of arrival.", variable="CALLSHEET_PLANNER")
    ] = PlannerChoice.ELASTIC
    hold_after: float = 5.0
    closed_actions: Annotated[
        int,
        Setting(
            "Most actions of closed jobs that explain and the history still show.",
            variable="CALLSHEET_CLOSED_ACTIONS",
            least=0,
        ),
    ] = 10_000
    prices: Prices = ()
    closed_actions_s: Annotated[
        float,
        Setting(
            "Seconds after the close for which explain shows them.", variable="CALLSHEET_CLOSED_ACTIONS_S", least=0
        ),
    ] = 3600.0
    keepalive_interval: float = 30.0
    keepalive_timeout: float = 20.0
    shutdown_grace: float = 2.0

    def __post_init__(self) -> None:
        read_prices(self.prices)
        self.access.check_listen(self.listen)
        if self.metrics_listen is not None:
            self.access.check_listen(self.metrics_listen)
