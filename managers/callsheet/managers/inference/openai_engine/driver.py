"""Any server with the completions API of OpenAI, behind the `EngineDriver` protocol."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

from callsheet.managers.inference.driver import EngineError, Generation
from callsheet.managers.inference.http_engine.attach import attach
from callsheet.managers.inference.http_engine.client import LOOK_TIMEOUT_S, EngineHttp, EngineUnreachableError, Where
from callsheet.managers.inference.http_engine.driver import MAX_REQUESTS, HttpEngineDriver
from callsheet.managers.inference.http_engine.live_requests import LiveRequest
from callsheet.managers.inference.http_engine.log_probs import Derivation, ToldLogProbs, derivation, log_probs_of
from callsheet.managers.inference.http_engine.requests import (
    error_of,
    finish_reason_of,
    new_tokens,
    sampling_parameters,
)
from callsheet.managers.inference.http_engine.versions import one_span
from callsheet.managers.inference.http_engine.watch import Look
from callsheet.managers.inference.openai_engine.server import (
    OpenAIServer,
    listed_model,
    read_server,
    start_of,
    token_ids_of,
)
from callsheet.managers.inference.openai_engine.settings import OpenAISettings

_SEED_BITS = 31


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

    def __init__(
        self, http: EngineHttp, server: OpenAIServer, *, start_version: int = 0, max_requests: int = MAX_REQUESTS
    ) -> None:
        super().__init__(http, server, start_version=start_version, max_requests=max_requests)
        self._server = server

    async def _look(self) -> Look:
        answer = await self._http.get("/v1/models", timeout_s=LOOK_TIMEOUT_S)
        if answer.status >= 500:
            raise EngineUnreachableError(f"{self._http.url}/v1/models: {answer.message}", refused=False)
        return Look(identity=start_of(listed_model(answer, self._server.name)))

    async def _submit(self, live: LiveRequest) -> Generation:
        sampling = live.request.sampling
        told = ToldLogProbs.UNKNOWN if self._server.log_probs else None
        how = Derivation.NONE if told is None else derivation(told, sampling)
        seed = secrets.randbits(_SEED_BITS) if sampling.seed is None else sampling.seed
        answer = await self._http.post("/v1/completions", self._body(live, how, seed), timeout_s=None)
        if not answer.ok:
            raise error_of(answer)
        return self._generation(answer.content["choices"][0], live, how, seed)

    def _body(self, live: LiveRequest, how: Derivation, seed: int) -> dict[str, Any]:
        request, sampling = live.request, live.request.sampling
        body = sampling_parameters(sampling) | {
            "model": self._server.name,
            "prompt": list(request.prompt_token_ids),
            "max_tokens": new_tokens(request, self._server.bounds.limits),
            "seed": seed & ((1 << _SEED_BITS) - 1),
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

    def _generation(self, choice: dict[str, Any], live: LiveRequest, how: Derivation, seed: int) -> Generation:
        tokens, reason = token_ids_of(choice), finish_reason_of(choice.get("finish_reason"))
        if tokens is None:
            raise EngineError("the server answered no token ids")
        own = (choice.get("logprobs") or {}).get("token_logprobs") or ()
        return Generation(
            token_ids=tokens,
            log_probs=log_probs_of(how, live.request.sampling, len(tokens), own, (), joint=False),
            finish_reason=reason,
            version_spans=one_span(live.begun_version, len(tokens)),
            seed=seed,
            text=choice.get("text"),
        )

    async def _send_abort(self, live: LiveRequest) -> None:
        live.scope.cancel()
