"""Any server with the completions API of OpenAI, behind the `EngineDriver` protocol."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from callsheet.managers.inference.driver import (
    EngineCapabilities,
    EngineError,
    EngineLimits,
    LogProbsMode,
    UnsupportedError,
)
from callsheet.managers.inference.http_engine.client import (
    LOOK_TIMEOUT_S,
    EngineHttp,
    EngineStartingError,
    EngineUnreachableError,
    FoundServer,
    HttpAnswer,
    RequestBounds,
    Where,
    attach,
    new_tokens,
    sampling_parameters,
)
from callsheet.managers.inference.http_engine.driver import MAX_REQUESTS, HttpEngineDriver
from callsheet.managers.inference.http_engine.live_requests import (
    Derivation,
    LiveRequest,
    Look,
    Reply,
    ToldLogProbs,
)
from callsheet.managers.inference.openai_engine.settings import OpenAISettings
from callsheet.managers.models.completions import told_tokens
from typing_extensions import override

# What a server with the completions API can do, found out by asking it for one token.

PROBE_TIMEOUT_S = 120.0
"""The first token of a server that was just started takes long."""
MAX_STOP_TEXTS = 4
_ID_FIELDS = ("token_ids", "response_token_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIServer(FoundServer):
    """A server as it was found.

    Attributes:
        name: Name of its model.
        log_probs: Whether it tells log-probabilities.
    """

    name: str
    log_probs: bool

    @property
    @override
    def abilities(self) -> EngineCapabilities:
        return EngineCapabilities(
            update_modes=frozenset(),
            version_spans=False,
            prefix_cache=False,
            batch_invariant=False,
            stop_texts=True,
            log_probs_modes=frozenset(LogProbsMode) if self.log_probs else frozenset(),
            abort=False,
            seeds=False,
        )


async def read_server(http: EngineHttp, settings: OpenAISettings) -> OpenAIServer:
    """Asks a server for its models and for one token.

    Raises:
        EngineUnreachableError: It does not answer.
        EngineStartingError: It is not ready.
        UnsupportedError: It takes no token ids, or tells none.
        EngineError: It refuses to serve.
    """
    model = listed_model(await http.get("/v1/models"), settings.served_name)
    limits = EngineLimits(
        sequences=settings.sequences, context_length=settings.context_length or model.get("max_model_len")
    )
    name = str(model["id"])
    probe = {"model": name, "prompt": [0], "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    answer = await http.post("/v1/completions", {**probe, "logprobs": 1}, timeout_s=PROBE_TIMEOUT_S)
    if answer.status in (400, 422):
        answer = await http.post("/v1/completions", probe, timeout_s=PROBE_TIMEOUT_S)
    if answer.status == 503:
        raise EngineStartingError(answer.message)
    if answer.status in (400, 422):
        raise UnsupportedError(f"{http.url}: takes no token ids as a prompt: {answer.message}")
    if not answer.ok:
        raise EngineError(f"{http.url}: {answer.message}")
    choice = answer.content["choices"][0]
    if token_ids_of(choice) is None:
        raise UnsupportedError(f"{http.url}: tells no token ids: it does not know return_token_ids")
    bounds = RequestBounds(limits=limits, vocabulary=settings.vocabulary_size, stop_texts=MAX_STOP_TEXTS)
    told = (choice.get("logprobs") or {}).get("token_logprobs")
    return OpenAIServer(name=name, bounds=bounds, log_probs=bool(told), identity=start_of(model))


def listed_model(answer: HttpAnswer, name: str | None) -> dict[str, Any]:
    """The model of a name in an answer of /v1/models; the first one without a name.

    Raises:
        EngineStartingError: The server is not ready.
        EngineError: It lists no such model.
    """
    if answer.status == 503:
        raise EngineStartingError(answer.message)
    models = answer.field("data") if answer.ok else None
    if not isinstance(models, list):
        raise EngineError(f"/v1/models: {answer.message}")
    for model in models:
        if name in (None, model.get("id")):
            return dict(model)
    raise EngineError(f"/v1/models lists {[model.get('id') for model in models]}; {name!r} is none of them")


def start_of(model: dict[str, Any]) -> str:
    """What may tell one start of a server from another; some servers make up a new time for each answer."""
    return str(model.get("root") or "")


def token_ids_of(choice: dict[str, Any]) -> tuple[int, ...] | None:
    """Ids of the new tokens in a choice, under either of the names that servers have for them."""
    for name in _ID_FIELDS:
        if isinstance(choice.get(name), list):
            return tuple(int(token) for token in choice[name])
    return None


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
