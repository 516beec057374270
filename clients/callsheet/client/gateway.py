"""The gateway for trainers: a key for an agent, and the samples of its model's replies.

The gateway serves HTTP, and this module needs only Python's own library. See docs/how-to/gateway.md.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final
from urllib.parse import quote, urlsplit

import anyio
import anyio.to_thread
from callsheet.client.errors import CallsheetError, ConnectionLostError, RefusalCode, refused
from callsheet.client.settings import ClientOptions
from callsheet.credentials.secret_files import secret_file

DEFAULT_GATEWAY: Final = "http://127.0.0.1:7078"
"""The default URL of the gateway of `callsheet up`."""
GATEWAY_PLACE: Final = "gateway"
"""Names the gateway among the places of `EnvReset.network`."""
_PORTS: Final = {"http": 80, "https": 443}
_CODES: Final = {
    400: RefusalCode.INVALID_ARGUMENT,
    401: RefusalCode.UNAUTHENTICATED,
    403: RefusalCode.PERMISSION_DENIED,
    404: RefusalCode.NOT_FOUND,
    409: RefusalCode.FAILED_PRECONDITION,
    429: RefusalCode.RESOURCE_EXHAUSTED,
}


class PromptDrift(Enum):
    """The relation of a call's prompt to the tokens of the calls before it."""

    CLEAN = "clean"
    """It keeps every token of the call that it continues, or begins a conversation of its own."""
    REALIGNED = "realigned"
    """The agent changed the end of the last reply; the tokens from there on were replaced."""
    FORKED = "forked"
    """It repeats a reply whose tokens could not be kept."""


@dataclass(frozen=True, slots=True)
class GatewayAccess:
    """An agent's access to a model in the name of one trajectory.

    Attributes:
        url: The gateway's URL, such as "http://127.0.0.1:7078".
        api_key: The trajectory's own key: its bearer may generate in this trajectory, and do nothing else.
        expires_at: The end of the key, in seconds since 1970.
    """

    url: str
    api_key: str = field(repr=False)
    expires_at: float

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI's clients, and those like them."""
        return f"{self.url}/v1"

    @property
    def anthropic_base_url(self) -> str:
        """The base URL for Anthropic's clients."""
        return self.url

    def environment(self) -> dict[str, str]:
        """Returns the variables that most agents read."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.anthropic_base_url,
            "ANTHROPIC_API_KEY": self.api_key,
        }


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One row for a trainer: prompt, reply, the text after it, the next reply.

    All fields except `turns` have one entry for each token.

    Attributes:
        token_ids: Tokens of the whole path; shape (n,).
        loss_mask: 1 for a token that was sampled, and has a 1 in no other sample; shape (n,).
        log_probs: Natural logarithm of a sampled token's probability; None for others; shape (n,).
        versions: The policy version that made a sampled token; None for others; shape (n,).
        turns: The calls of the path, by number.
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    log_probs: tuple[float | None, ...]
    versions: tuple[int | None, ...]
    turns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """One answered call of an agent.

    Attributes:
        turn: The number of the call.
        parent: The turn that the call continues; None for a new conversation.
        drift: The relation of the prompt to the tokens before it.
        reason: The reason if `drift` is not clean.
        prompt_tokens: Number of tokens of the prompt.
        reply_tokens: Number of tokens of the reply.
    """

    turn: int
    parent: int | None
    drift: PromptDrift
    reason: str
    prompt_tokens: int
    reply_tokens: int


@dataclass(frozen=True, slots=True)
class TrajectorySamples:
    """All replies of an agent's model in a trajectory.

    Attributes:
        samples: The samples; a turn that continues another turn is in the same sample.
        turns: The turns, in the order of their ends.
    """

    samples: tuple[TrainingSample, ...]
    turns: tuple[SampledTurn, ...]


async def issue_key(
    options: ClientOptions, job_id: str, trajectory_id: str, body: Mapping[str, Any], life: str = ""
) -> GatewayAccess:
    """Returns a key of a trajectory; `life` is the life of its job, if known.

    Raises:
        RefusedError: The gateway refused it.
        ConnectionLostError: There was no answer in time.
    """
    found = await _ask(options, "POST", "keys", (job_id, life, trajectory_id), json.dumps(body).encode())
    return GatewayAccess(gateway_url(options), found["api_key"], found["expires_at"])


async def read_samples(options: ClientOptions, job_id: str, trajectory_id: str, life: str = "") -> TrajectorySamples:
    """Returns the samples of a trajectory; `life` is the life of its job, if known.

    Raises:
        RefusedError: The gateway refused it.
        ConnectionLostError: There was no answer in time.
    """
    return decode_samples(await _ask(options, "GET", "samples", (job_id, life, trajectory_id)))


def is_serving(options: ClientOptions) -> bool:
    """Returns True if the gateway serves. Blocks."""
    request = urllib.request.Request(f"{gateway_url(options)}/health")
    try:
        return bool(_answer(request, options)["status"] == "ok")
    except CallsheetError:
        return False


def decode_samples(found: Mapping[str, Any]) -> TrajectorySamples:
    """Returns the samples in a gateway's JSON. Pure."""
    columns = ("token_ids", "loss_mask", "log_probs", "versions", "turns")
    samples = (TrainingSample(**{name: tuple(each[name]) for name in columns}) for each in found["samples"])
    turns = (SampledTurn(**{**each, "drift": PromptDrift(each["drift"])}) for each in found["turns"])
    return TrajectorySamples(tuple(samples), tuple(turns))


def gateway_url(options: ClientOptions) -> str:
    """Returns the gateway's URL without a slash at its end."""
    return (options.gateway or DEFAULT_GATEWAY).rstrip("/")


def named_places(network: Sequence[str], options: ClientOptions) -> Sequence[str]:
    """Returns places as managers read them: "host:port" of the gateway for its name, and others as they are.

    Any other value is returned unchanged, and refused elsewhere.
    """
    if not isinstance(network, tuple):
        return network
    return tuple(_gateway_place(options) if place == GATEWAY_PLACE else place for place in network)


def _gateway_place(options: ClientOptions) -> str:
    url = urlsplit(gateway_url(options))
    host = url.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{url.port or _PORTS.get(url.scheme, 0)}"


async def _ask(
    options: ClientOptions, method: str, what: str, place: tuple[str, str, str], body: bytes | None = None
) -> Any:
    job_id, life, trajectory_id = place
    headers = {"x-callsheet-job": quote(job_id), "x-callsheet-trajectory": quote(trajectory_id)}
    headers |= {"x-callsheet-job-life": life} if life else {}
    headers |= {name: str(value) for name, value in options.credentials.metadata() or ()}
    url = f"{gateway_url(options)}/callsheet/v1/{what}"
    request = urllib.request.Request(url, body, headers, method=method)
    return await anyio.to_thread.run_sync(_answer, request, options, abandon_on_cancel=True)


def gateway_opener(request: urllib.request.Request, options: ClientOptions) -> urllib.request.OpenerDirector:
    """Returns the opener of requests to a gateway, with the options' TLS, and through a proxy if they name one."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler(None if options.use_proxy else {})]
    if request.type == "https":
        handlers.append(urllib.request.HTTPSHandler(context=_tls(options)))
    return urllib.request.build_opener(*handlers)


def _answer(request: urllib.request.Request, options: ClientOptions) -> Any:
    try:
        with gateway_opener(request, options).open(request, timeout=options.call_timeout_s) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            said = _message(error)
        raise refused(_CODES.get(error.code, RefusalCode.UNAVAILABLE), rule=f"the gateway says: {said}") from None
    except (OSError, ValueError) as error:
        raise ConnectionLostError(f"no answer from the gateway at {request.host}: {error}") from error


def _tls(options: ClientOptions) -> ssl.SSLContext:
    tls = options.tls
    context = ssl.create_default_context(cafile=tls.ca_file if tls is not None else None)
    if tls is not None and tls.cert_file is not None and tls.key_file is not None:
        context.load_cert_chain(tls.cert_file, secret_file(tls.key_file))
    return context


def _message(error: urllib.error.HTTPError) -> str:
    content = error.read(65_536)
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"status {error.code}"
