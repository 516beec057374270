"""Renders views as HTML, and says what browsers may do with it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from callsheet.dashboard.blocks import Cell, Notice, View
from callsheet.dashboard.plain_text import plain_text
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

HERE: Final = Path(__file__).parent
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    # With "no-referrer" browsers say that a form of these pages has the origin "null".
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
"""Headers of each answer."""
_NOT_KEPT: Final = {"Cache-Control": "no-store", "Vary": "HX-Request, Cookie"}
MENU: Final = (
    ("Stuck", "/stuck"),
    ("Now", "/now"),
    ("Engines", "/engines"),
    ("What if", "/what-if"),
)


@lru_cache(maxsize=1)
def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(request: Request, view: View, facts: dict[str, Any], status: int = 200) -> HTMLResponse:
    """Returns a page, or the part of it that refreshes itself where that is asked for.

    Args:
        request: What asks for it.
        view: What is shown.
        facts: What is around it: `theme`, `themes`, `viewer`, `refused`, `has_token`, `last_alive` and `at`.
        status: The status of HTTP.
    """
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    is_part = request.headers.get("hx-request") == "true" and request.method == "GET"
    told = {"view": view, "menu": MENU, "path": request.url.path, "here": here, "part": is_part, **facts}
    text = _templates().get_template("page.html").render(told)
    return HTMLResponse(text.encode("utf-8", "replace"), status, _NOT_KEPT)


def error_view(title: str, message: str, *links: Cell) -> View:
    """Returns the page of a refusal."""
    return View(title, (Notice(plain_text(message, most=2000).text, "bad", links),), refresh_s=0)


def plain_error(message: str, status: int) -> Response:
    """Returns an error as one line of text, for a part of a page."""
    text = plain_text(message, most=2000).text.encode("utf-8", "replace")
    return Response(text, status, _NOT_KEPT, media_type="text/plain")
