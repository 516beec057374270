"""The web application: pages that look, forms that act, and who may see them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import anyio
import structlog
from callsheet.client.errors import CallsheetError, ConnectionLostError, RefusalCode, RefusedError, one_error
from callsheet.dashboard.acts import ACTS, Act
from callsheet.dashboard.blocks import Cell, FormField, Notice, View, WebForm
from callsheet.dashboard.pages import HERE, error_view, plain_error, render
from callsheet.dashboard.source import Source
from callsheet.dashboard.viewer import (
    THEME_COOKIE,
    THEMES,
    Asked,
    Viewer,
    fields_of,
    is_local,
    own_page,
    token_cookie,
    token_of,
)
from callsheet.dashboard.views.all import VIEWS
from callsheet.dashboard.words import clock_time
from callsheet.http_server.bounded_body import BoundedBody
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

Sources: TypeAlias = Callable[[str | None], Source]
MAX_FORM_BYTES: Final = 1 << 16
_PAGE_S: Final = 15.0
_MOST_AT_ONCE: Final = 32
_YEAR_S: Final = 365 * 86_400
_STATUS: Final[Mapping[RefusalCode, int]] = {
    RefusalCode.INVALID_ARGUMENT: 400,
    RefusalCode.PERMISSION_DENIED: 403,
    RefusalCode.UNAUTHENTICATED: 401,
    RefusalCode.NOT_FOUND: 404,
    RefusalCode.FAILED_PRECONDITION: 409,
    RefusalCode.ALREADY_EXISTS: 409,
    RefusalCode.RESOURCE_EXHAUSTED: 429,
    RefusalCode.UNIMPLEMENTED: 501,
    RefusalCode.UNAVAILABLE: 503,
}
_log = structlog.get_logger(__name__)


class Dashboard:
    """Answers requests. What a viewer may see or do the scheduler decides, by the viewer's token."""

    def __init__(self, sources: Sources, *, has_certificate: bool) -> None:
        """Args:
        sources: What a viewer with a token, or with none, may ask.
        has_certificate: Whether browsers connect with TLS.
        """
        self._sources = sources
        self._has_certificate = has_certificate
        self._room = anyio.Semaphore(_MOST_AT_ONCE)

    async def viewer(self, request: Request, token: str | None) -> Viewer:
        """Returns the viewer who has this token.

        Raises:
            RefusedError: UNAUTHENTICATED: the scheduler does not know the token.
            ConnectionLostError: The scheduler does not answer.
        """
        source = self._sources(token)
        info = await source.get_server_info()
        peer = request.client.host if request.client else ""
        return Viewer(source, info.caller_scope, info.caller_subject, is_local(peer))

    def looking(self, look: Callable[[Asked], Awaitable[View]]) -> Callable[[Request], Awaitable[Response]]:
        """Returns the handler of a page."""

        async def answer(request: Request, viewer: Viewer) -> Response:
            asked = Asked(viewer, dict(request.query_params), viewer.source.last_alive or time.time())
            return self._page(request, viewer, await look(asked))

        return self._answering(answer)

    def acting(self, act: Act) -> Callable[[Request], Awaitable[Response]]:
        """Returns the handler of a form that changes something; a page of its own, asked for by GET, confirms it."""

        async def answer(request: Request, viewer: Viewer) -> Response:
            if (why := viewer.why_no_acts) is not None:
                return self._page(request, viewer, error_view("Not done", why), 403)
            if request.method != "POST":
                asked = Asked(viewer, dict(request.query_params), time.time())
                return self._page(request, viewer, await act.confirm(asked))
            fields = await _form(request)
            await act.do(Asked(viewer, fields, time.time()))
            return RedirectResponse(act.after(fields), 303)

        return self._answering(answer)

    async def login(self, request: Request) -> Response:
        """Asks for a token, and keeps one that the scheduler knows in a cookie."""
        wanted = own_page(request.query_params.get("next", "/"))
        if request.method == "GET":
            return self._page(request, None, _login_view(wanted))
        fields = await _form(request)
        wanted, token = own_page(fields.get("next", "/")), token_of(fields.get("token"))
        if token is None:
            return self._page(request, None, _login_view(wanted, "This text is no token."), 403)
        try:
            # Tokens are guessed no faster than pages are made, and guesses leave room for pages.
            with anyio.fail_after(_PAGE_S):
                async with self._room:
                    await self.viewer(request, token)
        except (CallsheetError, TimeoutError) as error:
            status = 403 if isinstance(error, RefusedError) else 503
            return self._page(request, None, _login_view(wanted, _told_of(error)), status)
        response = RedirectResponse(wanted, 303)
        response.set_cookie(_cookie(request), token, httponly=True, samesite="strict", secure=self._has_certificate)
        return response

    async def logout(self, request: Request) -> Response:
        """Forgets the browser's token."""
        response = RedirectResponse("/login", 303)
        response.delete_cookie(_cookie(request), httponly=True, samesite="strict", secure=self._has_certificate)
        return response

    async def theme(self, request: Request) -> Response:
        """Keeps the colours that a reader wants."""
        fields = await _form(request)
        response = RedirectResponse(own_page(fields.get("next", "/")), 303)
        if fields.get("theme") in THEMES:
            response.set_cookie(
                THEME_COOKIE,
                fields["theme"],
                max_age=_YEAR_S,
                httponly=True,
                samesite="strict",
                secure=self._has_certificate,
            )
        return response

    async def broke(self, request: Request, error: Exception) -> Response:
        """Answers a request that no handler answered: its page does not exist, or it is beyond a bound."""
        status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "")
        title = "Not found" if status == 404 else "Not answered"
        return self._error(request, None, title, detail or "It failed.", status)

    def _answering(
        self, handle: Callable[[Request, Viewer], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            viewer: Viewer | None = None
            if request.method == "POST":
                # Before it takes a place: nobody waits for another's form. The request keeps it.
                await _form(request)
            try:
                with anyio.fail_after(_PAGE_S), one_error():
                    async with self._room:
                        viewer = await self.viewer(request, token_of(request.cookies.get(_cookie(request))))
                        return await handle(request, viewer)
            except RefusedError as error:
                if error.code is RefusalCode.UNAUTHENTICATED:
                    return _to_login(request)
                return self._error(request, viewer, "The scheduler refused", str(error), _STATUS.get(error.code, 502))
            except (ConnectionLostError, TimeoutError) as error:
                return self._error(
                    request, viewer, "No answer", f"The scheduler does not answer: {_told_of(error)}", 503
                )
            except HTTPException:
                raise
            except Exception:
                _log.exception("page_broke", path=request.url.path)
                return self._error(request, viewer, "This page failed", "The log of the dashboard has the cause.", 500)

        return answer

    def _error(self, request: Request, viewer: Viewer | None, title: str, message: str, status: int) -> Response:
        if request.headers.get("hx-request") == "true":
            return plain_error(message, status)
        return self._page(request, viewer, error_view(title, message, Cell("Back to the first page", "/")), status)

    def _page(self, request: Request, viewer: Viewer | None, view: View, status: int = 200) -> Response:
        chosen = request.cookies.get(THEME_COOKIE, "")
        last_alive = viewer.source.last_alive if viewer is not None else None
        facts: dict[str, Any] = {
            "theme": chosen if chosen in THEMES else THEMES[0],
            "themes": THEMES,
            "viewer": viewer.name if viewer is not None else "",
            "refused": viewer.refused_pages if viewer is not None else (),
            # On pages of refusals too: another token may see more.
            "has_token": token_of(request.cookies.get(_cookie(request))) is not None,
            "last_alive": clock_time(last_alive) if last_alive is not None else "",
            "at": clock_time(time.time()),
        }
        return render(request, view, facts, status)


def make_app(sources: Sources, *, has_certificate: bool) -> Starlette:
    """Returns the application.

    Args:
        sources: What a viewer with a token, or with none, may ask.
        has_certificate: Whether browsers connect with TLS.
    """
    dashboard = Dashboard(sources, has_certificate=has_certificate)
    routes: list[Route | Mount] = [
        Route("/", _first),
        Route("/health", _health),
        Route("/login", dashboard.login, methods=["GET", "POST"]),
        Route("/logout", dashboard.logout, methods=["POST"]),
        Route("/theme", dashboard.theme, methods=["POST"]),
        Mount("/static", _Static(directory=HERE / "static")),
    ]
    routes += [Route(f"/{name}", dashboard.looking(look)) for name, look in VIEWS.items()]
    routes += [Route(f"/{name}", dashboard.acting(act), methods=["GET", "POST"]) for name, act in ACTS.items()]
    handlers: dict[Any, Any] = {HTTPException: dashboard.broke, Exception: dashboard.broke}
    return Starlette(
        routes=routes,
        middleware=[Middleware(BoundedBody, limit=MAX_FORM_BYTES, limit_of_all=1024 * MAX_FORM_BYTES)],
        exception_handlers=handlers,
    )


class _Static(StaticFiles):
    """Files that browsers keep, and look at anew when they are used: a newer dashboard has others."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


async def _first(_: Request) -> Response:
    return RedirectResponse("/stuck", 307)


async def _health(_: Request) -> Response:
    """As a gateway tells it, which `callsheet health --gateway` asks."""
    return JSONResponse({"status": "ok"})


def _to_login(request: Request) -> Response:
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    to = str(request.url_for("login").include_query_params(next=here).replace(scheme="", netloc=""))
    if request.headers.get("hx-request") == "true":
        return Response(status_code=204, headers={"HX-Redirect": to})
    return RedirectResponse(to, 303)


def _login_view(wanted: str, wrong: str = "") -> View:
    form = WebForm("/login", "Log in", (FormField("token", "Token", "", secret=True),), {"next": wanted}, post=True)
    told = (
        "This scheduler asks for a token. Pages show what yours may see. A cookie of this browser keeps it until you "
        "log out, or close the browser."
    )
    return View("Log in", ((Notice(wrong, "bad"),) if wrong else ()) + (Notice(told), form), refresh_s=0)


def _cookie(request: Request) -> str:
    return token_cookie(request.headers.get("host", ""))


def _told_of(error: Exception) -> str:
    return str(error) or f"there was no answer within {_PAGE_S:g} s"


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form, which a page of our own sent: browsers tell the page's origin with each."""
    if "origin" not in request.headers:
        raise HTTPException(403, "Origin: a form must come from a page of this dashboard")
    try:
        with anyio.fail_after(_PAGE_S):
            return fields_of(await request.body())
    except ValueError:
        raise HTTPException(400, "the form has too many fields") from None
    except TimeoutError:
        raise HTTPException(408, f"the form must come within {_PAGE_S:g} s") from None
