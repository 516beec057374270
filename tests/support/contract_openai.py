"""The completions API of OpenAI over a contract engine, with or without what is not in the original."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from aiohttp import web

from tests.support.contract_engine import ContractEngine, EngineRequest
from tests.support.contract_http import ContractServer, Handler, json_of


class ContractOpenAI(ContractServer):
    """A server that only completes.

    Args:
        new_engine: Makes the engine of each start.
        token_ids: Whether it takes and tells token ids; otherwise only texts, and refuses unknown fields.
        log_probs: Whether it tells log-probabilities.
        api_key: What callers must show.
    """

    def __init__(
        self,
        new_engine: Callable[[], ContractEngine],
        *,
        token_ids: bool = True,
        log_probs: bool = True,
        api_key: str | None = None,
    ) -> None:
        super().__init__(new_engine, api_key=api_key)
        self._token_ids = token_ids
        self._log_probs = log_probs
        self._ids = (f"cmpl-{number}" for number in itertools.count())

    def routes(self) -> dict[str, Handler]:
        """See `ContractServer`."""
        return {"GET /v1/models": self._models, "POST /v1/completions": self._complete}

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": "tiny", "object": "model", "max_model_len": self.engine.context_length}
        return web.json_response({"object": "list", "data": [model]})

    async def _complete(self, request: web.Request) -> web.Response:
        body = await json_of(request)
        if not self._token_ids and not isinstance(body["prompt"], str):
            return _problem("prompt must be a string")
        if "logprobs" in body and not self._log_probs:
            return _problem("logprobs is not supported", 422)
        if len(body["prompt"]) + body["max_tokens"] > self.engine.context_length:
            return _problem(f"This model's maximum context length is {self.engine.context_length} tokens.")
        live = EngineRequest(
            request_id=next(self._ids),
            prompt=tuple(body["prompt"]),
            max_new_tokens=body["max_tokens"],
            temperature=body.get("temperature", 1.0),
            top_k=body.get("top_k", 0),
            top_p=body.get("top_p", 1.0),
            seed=body.get("seed"),
            stop_token_ids=frozenset(body.get("stop_token_ids") or ()),
            stop=tuple(body.get("stop") or ()),
        )
        if not self.engine.submit(live):
            return _problem("too many requests", 429)
        try:
            await live.ended.wait()
        finally:
            if not live.finish:
                self.engine.abort(live)
        choice: dict[str, object] = {"index": 0, "text": live.text, "finish_reason": live.finish}
        if body.get("return_token_ids"):
            choice["token_ids"] = list(live.output)
        if body.get("logprobs"):
            choice["logprobs"] = {"token_logprobs": [float(each.raw[each.token]) for each in live.drawn]}
        usage = {"prompt_tokens": len(live.prompt), "prompt_tokens_details": {"cached_tokens": live.cached}}
        told = {"id": live.request_id, "object": "text_completion", "choices": [choice], "usage": usage}
        return web.json_response(told)


def _problem(message: str, status: int = 400) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)
