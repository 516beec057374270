"""The web application: E2B's REST API, and the side of its sandboxes."""

from __future__ import annotations

import hmac
from typing import Any

from callsheet.http_server.bounded_body import BoundedBody
from callsheet.integrations.e2b.code_endpoints import CodeEndpoints
from callsheet.integrations.e2b.envd import EnvdEndpoints, told
from callsheet.integrations.e2b.errors import ConnectCode, E2bError
from callsheet.integrations.e2b.rest import RestEndpoints
from callsheet.integrations.e2b.sandboxes import E2bSandboxes
from callsheet.integrations.e2b.settings import E2bSettings
from callsheet.integrations.sandboxes.faults import FacadeError
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

_REST = ("/sandboxes", "/v2/sandboxes")


def make_app(sandboxes: E2bSandboxes, settings: E2bSettings) -> Starlette:
    """Returns the application.

    Args:
        sandboxes: What it serves.
        settings: Who may ask, and how much.
    """
    middleware = [Middleware(BoundedBody, limit=settings.max_request_bytes)]
    if settings.auth_token is not None:
        middleware.insert(0, Middleware(_ApiKey, key=settings.auth_token))
    handlers: dict[Any, Any] = {
        FacadeError: _foreseen,
        ValidationError: _foreseen,
        HTTPException: _refused,
        Exception: _broken,
    }
    rest, envd = RestEndpoints(sandboxes, settings.sandbox), EnvdEndpoints(sandboxes, settings)
    routes = [Route("/", _root), *rest.routes(), *envd.routes(), *CodeEndpoints(sandboxes).routes()]
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


class _ApiKey:
    """Lets nobody to the REST API who does not know the key; sandboxes have tokens of their own."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_REST):
            given = Headers(scope=scope).get("X-API-Key", "").encode()
            if not hmac.compare_digest(given, self._key):
                error = E2bError(ConnectCode.UNAUTHENTICATED, "X-API-Key: must be the facade's token")
                await JSONResponse(error.rest_body(), status_code=error.status)(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _root(request: Request) -> Response:
    del request
    return JSONResponse({"message": "Callsheet, speaking the protocols of E2B 2"})


async def _foreseen(request: Request, error: Exception) -> Response:
    del request
    fault = told(error)
    return JSONResponse(fault.rest_body(), status_code=fault.status)


async def _refused(request: Request, error: HTTPException) -> Response:
    del request
    return JSONResponse({"code": error.status_code, "message": error.detail}, status_code=error.status_code)


async def _broken(request: Request, error: Exception) -> Response:
    """A bug of the facade: the client is told, and the server logs the traceback."""
    fault = E2bError(ConnectCode.INTERNAL, f"the facade failed: {type(error).__name__}")
    return await _foreseen(request, fault)
