"""Services that speak HTTP: an API as a tool, and a judge behind an OpenAI-compatible API.

A call of a tool names method and path, and its HTTP answer is the result, whatever its status.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from callsheet.managers.executor import Attempt, Completed
from callsheet.managers.models.completions import blames_length, message_of, text_of, told_tokens
from callsheet.managers.reward.hosted.questions import judged_text, read_judgement
from callsheet.managers.sandbox.network.destinations import Destination, covered
from callsheet.managers.tools.answers import ProviderAnswer, SentKey
from callsheet.managers.tools.errors import ENV, INFRA, QUOTA, ToolFailedError
from callsheet.managers.tools.provider import ApiProvider, OutgoingRequest, destination_of, refused
from callsheet.managers.tools.quota_gate import QuotaClock, QuotaGate
from callsheet.managers.tools.service import ToolService, bad_arguments, read_arguments, told_value
from callsheet.managers.tools.settings import JudgeTable, ToolTable
from callsheet.v1 import action_pb2, outcome_pb2
from google.protobuf.json_format import MessageToDict
from typing_extensions import override
from yarl import URL

_OK = 200
_SERVER_ERROR = 500
_MOST_REDIRECTS = 5
_MOST_HEADER_CHARACTERS = 8192
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_FOLLOWED = frozenset({"GET", "HEAD"})
_TOLD_HEADERS = ("content-type", "content-encoding", "content-language", "etag", "last-modified", "location")
_ARGUMENTS = ("query", "json", "text", "headers", "url")
# A little under what English takes, so that a judgement takes no more than expected.
_CHARACTERS_PER_TOKEN = 3


class HttpTool(ToolService):
    """Calls an API; redirects are followed to where calls may go by themselves."""

    def __init__(self, table: ToolTable, gate: QuotaGate, key: SentKey) -> None:
        """Makes the tool.

        Args:
            table: Its settings.
            gate: Its quota.
            key: What its own API is sent besides.

        Raises:
            ValueError: A setting breaks its rule.
        """
        super().__init__(table, gate)
        self._table = table
        self._base = URL(table.url) if table.url else None
        self._hosts = [Destination.parse(host) for host in table.hosts]
        allowed = self._hosts if self._base is None else [*self._hosts, destination_of(self._base)]
        self._provider = ApiProvider(allowed, table, gate, key, table.max_response_bytes)

    @override
    async def call(self, attempt: Attempt, clock: QuotaClock) -> Completed:
        request = self._request(attempt.action.tool_call.method, await read_arguments(attempt))
        for hop in range(_MOST_REDIRECTS + 1):
            try:
                answer = await self._provider.answer(request, clock, self._table.tokens_per_call)
            except ToolFailedError as error:
                if hop and error.broken.failed.kind == QUOTA and not attempt.action.tool_call.idempotent:
                    # What a quota refuses is tried again, and the requests before this one were made.
                    error.broken.failed.kind = INFRA
                raise
            further = self._redirected(request, answer)
            if further is None:
                break
            request = further
        told = await told_value(attempt, self._told(request.url, answer))
        if answer.status >= _SERVER_ERROR:
            raise _provider_failed(answer.status, told)
        return Completed(told)

    @override
    async def close(self) -> None:
        await self._provider.close()

    def _request(self, called: str, arguments: Mapping[str, Any]) -> OutgoingRequest:
        if unknown := sorted(arguments.keys() - set(_ARGUMENTS)):
            raise bad_arguments(f"arguments: {unknown[0]!r}: must be one of {', '.join(_ARGUMENTS)}")
        method, _, path = called.partition(" ")
        if method not in self._table.methods:
            raise bad_arguments(f"method: {method!r}: must be one of {', '.join(self._table.methods)}")
        headers, body = self._headers(arguments.get("headers", {})), None
        if "json" in arguments:
            body, headers = json.dumps(arguments["json"]).encode(), {"Content-Type": "application/json", **headers}
        elif "text" in arguments:
            body = str(arguments["text"]).encode()
        url = self._url(path.strip() or str(arguments.get("url", "")), arguments.get("query", {}))
        return OutgoingRequest(method, self._checked(url), headers, body, self._is_below_base(url))

    def _url(self, where: str, query: object) -> URL:
        if not isinstance(query, dict) or not all(isinstance(each, str | int | float) for each in query.values()):
            raise bad_arguments("query: must be an object of texts and numbers")
        try:
            url = URL(where)
            if not url.scheme:
                if self._base is None or where.startswith("//"):
                    raise bad_arguments(f"url: {where[:200]!r}: must be a whole URL")
                url = URL(f"{str(self._base).rstrip('/')}/{where.lstrip('/')}" if where else str(self._base))
            return url.update_query({name: str(value) for name, value in query.items()}) if query else url
        except ValueError as error:
            raise bad_arguments(f"url: {where[:200]!r}: must be a URL or a path") from error

    def _headers(self, asked: object) -> dict[str, str]:
        if (
            not isinstance(asked, dict)
            or sum(len(name) + len(str(asked[name])) for name in asked) > _MOST_HEADER_CHARACTERS
        ):
            raise bad_arguments(f"headers: must be an object of at most {_MOST_HEADER_CHARACTERS} characters")
        for name, value in asked.items():
            if name.lower() not in self._table.headers:
                raise bad_arguments(f"headers: {name[:200]!r}: must be one of {', '.join(self._table.headers)}")
            if not isinstance(value, str) or not value.isprintable():
                raise bad_arguments(f"headers: {name}: must be a printable text")
        return dict(asked)

    def _checked(self, url: URL) -> URL:
        if not covered(self._provider.check(url), self._hosts) and not self._is_below_base(url):
            raise refused("the URL is not below that of this tool")
        return url

    def _is_below_base(self, url: URL) -> bool:
        if self._base is None or url.origin() != self._base.origin() or ".." in url.path.split("/"):
            return False
        return f"{url.path}/".startswith(f"{self._base.path.rstrip('/')}/")

    def _redirected(self, request: OutgoingRequest, answer: ProviderAnswer) -> OutgoingRequest | None:
        """Returns the request that an answer redirects to; None if there is none or no call may go there."""
        location = answer.headers.get("location", "")
        if answer.status not in _REDIRECTS or request.method not in _FOLLOWED or not location:
            return None
        try:
            url = self._checked(request.url.join(URL(location)))
        except (ToolFailedError, ValueError):
            return None
        return OutgoingRequest(request.method, url, request.headers, None, self._is_below_base(url))

    def _told(self, url: URL, answer: ProviderAnswer) -> dict[str, object]:
        headers = {name: answer.headers[name] for name in _TOLD_HEADERS if name in answer.headers}
        told: dict[str, object] = {"status": answer.status, "url": self._provider.mask(str(url)), "headers": headers}
        if answer.truncated:
            told["truncated"] = True
        try:
            return told | {"body": answer.body.decode()}
        except UnicodeDecodeError:
            return told | {"body_base64": base64.b64encode(answer.body).decode()}


class HttpJudge(ToolService):
    """Asks for a chat completion by a rubric, decoded greedily, and finds the score in its text."""

    kind = action_pb2.ACTION_KIND_REWARD

    def __init__(self, table: JudgeTable, gate: QuotaGate, key: SentKey) -> None:
        super().__init__(table, gate)
        self._table = table
        self._url = URL(f"{table.url.rstrip('/')}/chat/completions")
        self._provider = ApiProvider([destination_of(self._url)], table, gate, key)

    @override
    async def call(self, attempt: Attempt, clock: QuotaClock) -> Completed:
        if attempt.action.reward.WhichOneof("scorer") != "judge":
            raise ToolFailedError(ENV, "wrong_kind_of_model", "this service answers judgements alone")
        question = attempt.action.reward.judge
        said = MessageToDict(question.text, preserving_proto_field_name=True)
        asked = judged_text({"rubric": question.rubric, **said})
        body = {
            "model": self._table.model,
            "messages": [{"role": "user", "content": asked}],
            "max_tokens": self._table.max_tokens,
            "temperature": 0,
        }
        headers = {"Content-Type": "application/json"}
        request = OutgoingRequest("POST", self._url, headers, json.dumps(body).encode())
        expected = len(asked) // _CHARACTERS_PER_TOKEN + self._table.max_tokens
        answer = await self._provider.answer(request, clock, expected, _tokens_used)
        if answer.status >= _SERVER_ERROR:
            raise _provider_failed(answer.status)
        if answer.status != _OK:
            raise self._refused(answer)
        if used := _tokens_used(answer):
            self.learn(used)
        return self._judged(answer, clock)

    @override
    async def close(self) -> None:
        await self._provider.close()

    def _judged(self, answer: ProviderAnswer, clock: QuotaClock) -> Completed:
        try:
            clock.used.update(told_tokens(answer.content))
            text, unfinished = map(self._provider.mask, text_of(answer.content))
        except (LookupError, TypeError) as error:
            raise ToolFailedError(INFRA, "provider_failed", "the provider's answer is no chat completion") from error
        found = read_judgement(text, self._table.score_pattern, unfinished)
        if "score" in found:
            return Completed(outcome_pb2.Succeeded(reward=outcome_pb2.RewardResult(score=found["score"], text=text)))
        partial = outcome_pb2.Succeeded(reward=outcome_pb2.RewardResult(text=text))
        if "no_verdict" in found:
            raise ToolFailedError(INFRA, "no_verdict", found["no_verdict"], partial=partial)
        raise ToolFailedError(ENV, found["problem"], found["message"], partial=partial)

    def _refused(self, answer: ProviderAnswer) -> ToolFailedError:
        """Whatever a provider refuses a judgement for, the policy has no part in it, unless it wrote too much."""
        said = self._provider.mask(message_of(answer.content))
        message = f"the provider refuses with HTTP {answer.status}: {said}"
        if blames_length(answer.status, said):
            return ToolFailedError(ENV, "prompt_too_long", message)
        return ToolFailedError(INFRA, "provider_refused", message)


def _provider_failed(status: int, partial: outcome_pb2.Succeeded | None = None) -> ToolFailedError:
    return ToolFailedError(INFRA, "provider_failed", f"the provider answered with HTTP {status}", partial=partial)


def _tokens_used(answer: ProviderAnswer) -> int | None:
    try:
        return int(answer.content["usage"]["total_tokens"])
    except (LookupError, TypeError, ValueError, OverflowError):
        return None
