"""Any server with the completions API of OpenAI, behind the `EngineDriver` protocol."""

from __future__ import annotations

from functools import partial
from typing import Any

from callsheet.managers.inference.driver import (
    EngineError,
)
from callsheet.managers.inference.http_engine.attaching import attach
from callsheet.managers.inference.http_engine.client import (
    LOOK_TIMEOUT_S,
    EngineHttp,
    EngineUnreachableError,
    HttpAnswer,
    Where,
)
from callsheet.managers.inference.http_engine.driver import MAX_REQUESTS, HttpEngineDriver
from callsheet.managers.inference.http_engine.live_requests import LiveRequest
from callsheet.managers.inference.http_engine.log_probs import Derivation, ToldLogProbs
from callsheet.managers.inference.http_engine.looks import Look
from callsheet.managers.inference.http_engine.replies import Reply
from callsheet.managers.inference.http_engine.requests import (
    new_tokens,
    sampling_parameters,
)
from callsheet.managers.inference.openai_engine.server import (
    OpenAIServer,
    listed_model,
    read_server,
    start_of,
    token_ids_of,
)
from callsheet.managers.inference.openai_engine.settings import OpenAISettings
from callsheet.managers.models.completions import told_tokens


def attach_openai(
    settings: OpenAISettings, url: Where, api_key: str | None = None, *, start_version: int = 0
) -> OpenAIDriver:
    """Waits for a server, and returns a driver for what it turns out to be.

    Raises:
        EngineError: There is no such server in time.
    """
    connect = partial(EngineHttp, url, api_key)
    server = attach(connect, lambda http: read_server(http, settings), settings.attach_timeout)
    return OpenAIDriver(connect(), server, start_version=start_version)


class OpenAIDriver(HttpEngineDriver):
    """Drives a server that only completes: it has no aborts and no weights to replace.

    An abort ends the connection, after which most servers stop; the tokens are lost.

    Args:
        http: Calls to the server; belongs to the driver from now on.
        server: The server as it was found.
        start_version: The policy version of its weights.
        max_requests: The most live requests; more are refused as busy.
    """

    _seed_bits = 31

    def __init__(
        self, http: EngineHttp, server: OpenAIServer, *, start_version: int = 0, max_requests: int = MAX_REQUESTS
    ) -> None:
        super().__init__(http, server, start_version=start_version, max_requests=max_requests)
        self._server = server
        self._told = ToldLogProbs.UNKNOWN if server.log_probs else None

    async def _look(self) -> Look:
        answer = await self._http.get("/v1/models", timeout_s=LOOK_TIMEOUT_S)
        if answer.status >= 500:
            raise EngineUnreachableError(f"{self._http.url}/v1/models: {answer.message}", refused=False)
        return Look(identity=start_of(listed_model(answer, self._server.name)))

    async def _send(self, live: LiveRequest, how: Derivation, seed: int) -> HttpAnswer:
        return await self._http.post("/v1/completions", self._body(live, how, seed), timeout_s=None)

    def _body(self, live: LiveRequest, how: Derivation, seed: int) -> dict[str, Any]:
        request, sampling = live.request, live.request.sampling
        body = sampling_parameters(sampling) | {
            "model": self._server.name,
            "prompt": list(request.prompt_token_ids),
            "max_tokens": new_tokens(request, self._server.bounds.limits),
            "seed": seed,
            "return_token_ids": True,
        }
        # What is not of the original API is sent only to those who ask for it: some servers refuse unknown fields.
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.stop:
            body["include_stop_str_in_output"] = True
        if how is Derivation.AS_TOLD:
            body["logprobs"] = 1
        return body

    def _read(self, content: Any) -> Reply:
        choice = content["choices"][0]
        tokens = token_ids_of(choice)
        if tokens is None:
            raise EngineError("the server answered no token ids")
        return Reply(
            token_ids=tokens,
            finish_reason=choice.get("finish_reason"),
            own=(choice.get("logprobs") or {}).get("token_logprobs") or (),
            cached_tokens=told_tokens(content).get("tokens_cached", 0),
            text=choice.get("text"),
        )

    async def _send_abort(self, live: LiveRequest) -> None:
        live.scope.cancel()
