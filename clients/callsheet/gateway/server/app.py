"""The web application: from requests of providers' protocols to calls and back.

Routes below `/v1` are the dialects'. `/sessions/SESSION/v1` are the same with the key, or the trajectory, in the path.
`/callsheet/v1` is the gateway's own: keys and samples, for trainers.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
import msgspec
import structlog
from callsheet.gateway.chat import FAILURE_HEADER, BadRequestError, ChatReply
from callsheet.gateway.dialects import messages
from callsheet.gateway.dialects import models as model_listing
from callsheet.gateway.dialects.dialect import DIALECTS, Dialect, error_headers
from callsheet.gateway.server.callers import Caller, Callers, unknown
from callsheet.gateway.server.calls import LONG_REPLY, Calls
from callsheet.gateway.server.faults import BAD_REQUEST, PROMPT, TOO_MANY, NoReplyError
from callsheet.gateway.server.models import ServedModels
from callsheet.gateway.server.retries import mark_of
from callsheet.gateway.server.trainers import Trainers
from callsheet.http_server.bounded_body import BoundedBody
from callsheet.http_server.bounded_json import read_json
from callsheet.http_server.http_protocol import unless_disconnected
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

_PREFIXES: Final = ("/v1", "/sessions/{session:path}/v1")
_CHAT: Final = DIALECTS["/chat/completions"]
_PROMPTS: Final = {DIALECTS["/completions"]: "prompt", DIALECTS["/responses"]: "input"}
_CLIENT_GONE: Final = 499
_NOT_FOUND: Final = 404
_BROKEN: Final = 500
_TOO_SLOW: Final = 408
_BODY_S: Final = 120.0
_BUSY_S: Final = 1.0
_WRITER: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_log = structlog.get_logger(__name__)


class GatewayApi:
    """Services that the routes need."""

    def __init__(
        self, callers: Callers, calls: Calls, models: ServedModels, trainers: Trainers, started_at: float
    ) -> None:
        """Args:
        callers: Finds out who calls.
        calls: Makes replies.
        models: What is served.
        trainers: What trainers ask for.
        started_at: When the gateway started, in seconds since 1970.
        """
        self._callers = callers
        self._calls = calls
        self._models = models
        self._trainers = trainers
        self._started_at = int(started_at)

    async def _identify(self, request: Request) -> Caller:
        session = request.path_params.get("session", "")
        return await self._callers.identify(request.headers, session, request.client.host if request.client else "")

    async def call(self, path: str, dialect: Dialect, request: Request) -> Response:
        """A call of a dialect."""
        caller = await self._identify(request)
        content = await _body(request)
        asked, mark = await read_json(
            content, lambda body: (dialect.read(_object(body)), mark_of(path, body, request.headers))
        )
        try:
            reply = await unless_disconnected(request, lambda: self._calls.reply(caller, asked, mark))
        except NoReplyError as fault:
            if caller.is_named_by_key and fault.field == "job_id":
                raise unknown("the API key is no key, and names no open job") from None
            raise
        if reply is None:
            return Response(status_code=_CLIENT_GONE)
        headers = {"x-request-id": reply.call_id}
        if not asked.stream:
            # Escaped, as a model may write half a surrogate pair, which is no UTF-8.
            answer = await _written(reply, lambda: _WRITER.encode(dialect.answer(asked, reply)).encode())
            return Response(answer, media_type="application/json", headers=headers)
        # The reply is whole before its first event is sent: a client can still be told to try again until then.
        events = await _written(reply, lambda: b"".join(dialect.events(asked, reply)))
        headers |= {"x-callsheet-streaming": "synthetic", "cache-control": "no-cache"}
        return Response(events, media_type="text/event-stream", headers=headers)

    async def count_tokens(self, request: Request) -> Response:
        """How many tokens a call of Anthropic's messages would have."""
        caller = await self._identify(request)
        content = await _body(request)
        asked = await read_json(content, lambda body: messages.read(_object(body)))
        return JSONResponse(messages.token_count(await self._calls.count_tokens(caller, asked)))

    async def list_models(self, request: Request) -> Response:
        """The models that are served, or one of them."""
        await self._identify(request)
        served = {model.name: model for model in await self._models.all()}
        lengths = {name: {"context_length": model.context_length} for name, model in served.items()}
        name = request.path_params.get("model")
        if name is None:
            listing = model_listing.listing(list(served), self._started_at)
            return JSONResponse(listing | {"data": [each | lengths[each["id"]] for each in listing["data"]]})
        if name not in served:
            raise NoReplyError(_NOT_FOUND, f"model {name!r} is none of {', '.join(served)}")
        return JSONResponse(model_listing.model(name, self._started_at) | lengths[name])

    async def issue_key(self, request: Request) -> Response:
        """A key of a trajectory, for its trainer."""
        caller = await self._identify(request)
        body = await read_json(await _body(request), _object)
        return JSONResponse(self._trainers.issue_key(caller, body))

    async def samples(self, request: Request) -> Response:
        """The samples of a trajectory, for its trainer."""
        caller = await self._identify(request)
        return Response(await self._trainers.samples(caller), media_type="application/json")


def make_app(gateway: GatewayApi, max_request_bytes: int, max_waiting_bytes: int) -> Starlette:
    """Returns the application.

    Args:
        gateway: What it serves.
        max_request_bytes: Size of one request.
        max_waiting_bytes: Size of all requests that are not answered yet.
    """
    routes = [
        Route("/health", _health),
        Route("/callsheet/v1/keys", _answering(_CHAT, gateway.issue_key), methods=["POST"]),
        Route("/callsheet/v1/samples", _answering(_CHAT, gateway.samples)),
    ]
    for prefix in _PREFIXES:
        for path, dialect in DIALECTS.items():
            handler = _answering(dialect, partial(gateway.call, path, dialect))
            routes.append(Route(f"{prefix}{path}", handler, methods=["POST"]))
        counting = _answering(messages, gateway.count_tokens)
        routes.append(Route(f"{prefix}/messages/count_tokens", counting, methods=["POST"]))
        models = _answering(_CHAT, gateway.list_models)
        routes += [Route(f"{prefix}/models", models), Route(f"{prefix}/models/{{model:path}}", models)]
    middleware = [Middleware(BoundedBody, limit=max_request_bytes, limit_of_all=max_waiting_bytes)]
    handlers: dict[Any, Any] = {HTTPException: _refused}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


def _answering(
    dialect: Dialect, handle: Callable[[Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """A handler whose errors are told in a dialect's own form."""

    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except NoReplyError as fault:
            return _told(dialect, fault)
        except BadRequestError as error:
            return _told(dialect, NoReplyError(BAD_REQUEST, str(error), field=error.field))
        except HTTPException as error:
            return _told(dialect, _of_http(error))
        except Exception:
            _log.exception("request_broke", path=request.url.path.partition("/sessions/")[0])
            return _told(dialect, NoReplyError(_BROKEN, "the gateway failed"))

    return answer


def _told(dialect: Dialect, fault: NoReplyError) -> Response:
    headers = error_headers(fault.status, fault.retry_after_s)
    if fault.failure:
        headers = {**headers, FAILURE_HEADER: fault.failure}
    field = _PROMPTS.get(dialect, PROMPT) if fault.field == PROMPT else fault.field
    return JSONResponse(dialect.error(fault.status, str(fault), field=field, code=fault.code), fault.status, headers)


async def _refused(request: Request, error: HTTPException) -> Response:
    """Returns the error for a path without a route, in the form of the provider whose path is nearest."""
    dialect: Dialect = messages if "anthropic-version" in request.headers else _CHAT
    return _told(dialect, _of_http(error))


def _of_http(error: HTTPException) -> NoReplyError:
    return NoReplyError(
        error.status_code, error.detail, retry_after_s=_BUSY_S if error.status_code == TOO_MANY else None
    )


async def _body(request: Request) -> bytes:
    """Returns the body of a request, which takes memory for as long as it comes.

    Raises:
        NoReplyError: It did not come in time.
    """
    with anyio.move_on_after(_BODY_S):
        return await request.body()
    raise NoReplyError(_TOO_SLOW, f"the request did not come within {_BODY_S:.0f} seconds")


async def _health(request: Request) -> Response:
    del request
    return JSONResponse({"status": "ok"})


def _object(content: bytes) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # It takes no halves of surrogate pairs, no NaN and no byte order mark, as clients of Python's send them.
        body = _read_by_python(content)
    if not isinstance(body, dict):
        raise NoReplyError(BAD_REQUEST, f"the body is {type(body).__name__}; it must be an object")
    return body


def _read_by_python(content: bytes) -> object:
    try:
        # By a text: bytes could be in an encoding in which the bounds were looked for in vain.
        return json.loads(content.decode("utf-8-sig", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise NoReplyError(BAD_REQUEST, f"the body is no JSON: {error}") from error


async def _written(reply: ChatReply, work: Callable[[], bytes]) -> bytes:
    """Returns an answer; that of a long reply is written in a thread."""
    return work() if reply.completion_tokens <= LONG_REPLY else await anyio.to_thread.run_sync(work)
