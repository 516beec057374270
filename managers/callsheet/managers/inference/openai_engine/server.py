"""A server with the completions API as it was found, by asking it for one token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from callsheet.managers.inference.driver import (
    EngineCapabilities,
    EngineError,
    EngineLimits,
    LogProbsMode,
    UnsupportedError,
)
from callsheet.managers.inference.http_engine.attaching import EngineStartingError
from callsheet.managers.inference.http_engine.client import (
    EngineHttp,
    HttpAnswer,
)
from callsheet.managers.inference.http_engine.requests import (
    FoundServer,
    RequestBounds,
)
from callsheet.managers.inference.openai_engine.settings import OpenAISettings
from typing_extensions import override

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
    """Returns a text that may differ between starts of a server; some servers make up a new time for each answer."""
    return str(model.get("root") or "")


def token_ids_of(choice: dict[str, Any]) -> tuple[int, ...] | None:
    """Ids of the new tokens in a choice, under either of the names that servers have for them."""
    for name in _ID_FIELDS:
        if isinstance(choice.get(name), list):
            return tuple(int(token) for token in choice[name])
    return None
