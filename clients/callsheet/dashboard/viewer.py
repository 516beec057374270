"""Viewer of a page: the token in the browser's cookie, and whether this request may act. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl

from callsheet.client.errors import RefusalCode, refused
from callsheet.credentials.sandboxes import is_sandbox, plain_address
from callsheet.credentials.token import checked_token
from callsheet.dashboard.source import Source

TOKEN_COOKIE: Final = "callsheet_token"
THEME_COOKIE: Final = "callsheet_theme"
THEMES: Final = ("auto", "light", "dark")
JOB_SCOPE: Final = "job"
ACTING: Final = frozenset({"admin", JOB_SCOPE})
_LONGEST_TOKEN: Final = 1024
_MOST_FIELDS: Final = 20


@dataclass(frozen=True, slots=True)
class Viewer:
    """Sender of a request.

    Attributes:
        source: What the viewer may ask.
        scope: Of the viewer's token; empty where the scheduler asks for none.
        subject: The one job that the token is for; empty for other tokens.
        is_local: Whether the browser is on this machine, outside of all sandboxes.
    """

    source: Source
    scope: str
    subject: str
    is_local: bool

    @property
    def why_no_acts(self) -> str | None:
        """Returns why nothing may be changed from here; None if the scheduler decides."""
        if self.source.last_alive is not None:
            return "This run is over, and nothing in it can be changed."
        if not self.scope and not self.is_local:
            return "This scheduler asks for no tokens, so its dashboard acts for browsers on its own machine alone."
        return None

    @property
    def is_offered_acts(self) -> bool:
        """Returns whether pages show controls that act."""
        return self.why_no_acts is None and self.reads_contents

    @property
    def reads_contents(self) -> bool:
        """Returns whether the scheduler shows the viewer the inputs and results of actions."""
        return not self.scope or self.scope in ACTING

    @property
    def refused_pages(self) -> tuple[str, ...]:
        """Returns the pages that show this viewer nothing, so that no page links to them.

        The viewer has a job's token, or looks at a run without managers.
        """
        is_over = self.source.last_alive is not None
        return ("/manager", "/what-if") if is_over or self.scope == JOB_SCOPE else ()

    @property
    def name(self) -> str:
        """Returns the viewer's name on the page."""
        return f"{self.scope} {self.subject}".strip()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a view.

    Attributes:
        viewer: The viewer of the page.
        query: Fields of the page's address, or of a form.
        now: The time of the request, in seconds since 1970; of a dead run the time when it was last alive.
    """

    viewer: Viewer
    query: Mapping[str, str] = field(default_factory=dict)
    now: float = 0.0

    @property
    def source(self) -> Source:
        """Returns the source that the view asks."""
        return self.viewer.source

    def of(self, name: str) -> str:
        """A field of the query; empty if it is not there."""
        return self.query.get(name, "")

    def needed(self, name: str) -> str:
        """A field of the query.

        Raises:
            RefusedError: INVALID_ARGUMENT: it is not there, or empty, which some rpcs take for all there are.
        """
        if value := self.of(name):
            return value
        raise refused(RefusalCode.INVALID_ARGUMENT, field=name, value="", rule="must be given")


def token_of(cookie: str | None) -> str | None:
    """Returns the token in a cookie or a form; None for what is none, which is then as good as nothing."""
    try:
        return checked_token(cookie) if cookie and len(cookie) <= _LONGEST_TOKEN else None
    except ValueError:
        return None


def token_cookie(host: str) -> str:
    """Returns the name of the cookie that keeps the token, at a Host that a browser asks.

    Browsers send a machine's cookies to all of its ports, and each may be the dashboard of another scheduler.
    """
    port = host.rpartition(":")[2]
    return f"{TOKEN_COOKIE}_{port}" if port.isascii() and port.isdigit() and len(port) <= 5 else TOKEN_COOKIE


def is_local(peer: str) -> bool:
    """Returns whether a connection comes from this machine, and from no sandbox on it."""
    address = plain_address(peer)
    return address is not None and address.is_loopback and not is_sandbox(peer)


def fields_of(body: bytes) -> dict[str, str]:
    """Returns the fields of a form; of several with one name the last.

    Raises:
        ValueError: There are too many.
    """
    text = body.decode("ascii", "replace")
    return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="replace"))


def own_page(wanted: str) -> str:
    """Returns the page to go on with, if it is one of the dashboard's own; else the first one."""
    plain = wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    return wanted if plain and wanted.isascii() and wanted.isprintable() and len(wanted) <= 2048 else "/"
