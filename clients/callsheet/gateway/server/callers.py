"""Finds out which caller makes a call: by a trajectory's own key, or by a token of the scheduler."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar
from urllib.parse import unquote

import anyio
from callsheet.client import AccessDeniedError, CallsheetError, ClientOptions
from callsheet.client.admin import AdminClient, CallerIdentity
from callsheet.credentials.sandboxes import is_sandbox, plain_address, sandbox_source
from callsheet.gateway.server.call_store import JobLife
from callsheet.gateway.server.faults import BAD_REQUEST, UNKNOWN, NoReplyError, of_error
from callsheet.gateway.server.job_lives import JobLives
from callsheet.gateway.server.keys import ForcedSampling, KeyRefusedError, TrajectoryKey, is_key, read_key

JOB_HEADER: Final = "x-callsheet-job"
TRAJECTORY_HEADER: Final = "x-callsheet-trajectory"
LIFE_HEADER: Final = "x-callsheet-job-life"
_FORBIDDEN: Final = 403
_LONGEST_ID: Final = 256
_LONGEST_LIFE: Final = 64
_REMEMBERED_S: Final = 10.0
_MOST_REMEMBERED: Final = 4096
_MOST_BOUND: Final = 65_536
_OF_JOBS: Final = frozenset({"", "admin", "job"})
T = TypeVar("T")
_HOW: Final = "a trajectory's key or the token of its job, as Authorization: Bearer or x-api-key"


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller, and the job for which it calls.

    Attributes:
        job: The job.
        trajectory_id: Its trajectory; empty for a call that belongs to none.
        sampling: Sampling that the trainer forces.
        is_trainer: Whether it acts for the job, and not for one trajectory.
        is_named_by_key: Whether the job was named in place of a key, if no tokens are asked for.
        token_id: The public part of its token; empty without a token.
    """

    job: JobLife
    trajectory_id: str
    sampling: ForcedSampling = field(default_factory=ForcedSampling)
    is_trainer: bool = False
    is_named_by_key: bool = False
    token_id: str = ""


class Callers:
    """Finds out who calls. What the scheduler said of a token is remembered for 10 seconds.

    Attributes:
        secret: Of keys.
    """

    def __init__(self, target: str, options: ClientOptions, secret: bytes, lives: JobLives) -> None:
        """Args:
        target: The scheduler.
        options: How to reach it; its token is not used.
        secret: Of keys.
        lives: Tells jobs of one id apart.
        """
        self._lives = lives
        self._target = target
        self._options = options
        self.secret = secret
        self._known: OrderedDict[bytes, tuple[float, CallerIdentity | None]] = OrderedDict()
        self._in_sandboxes: OrderedDict[bytes, None] = OrderedDict()

    async def identify(self, headers: Mapping[str, str], session: str = "", peer: str = "") -> Caller:
        """Returns who makes a call.

        Args:
            headers: Of the request.
            session: What its path names: a key, a trajectory of the caller's job, or JOB/TRAJECTORY.
            peer: The address that it came from. A program in a sandbox must show the key of that sandbox's trajectory,
                also where no tokens are asked for.

        Raises:
            NoReplyError: Nobody who may, or it is not clear for which job.
        """
        shown = bearer_of(headers)
        for text in (session, shown):
            if is_key(text):
                return await self._of_key(text, peer)
        if is_sandbox(peer):
            raise NoReplyError(_FORBIDDEN, "a program in a sandbox calls: it must show the key of its trajectory")
        identity = await self._ask(shown)
        if identity is None:
            raise unknown("the caller is not known")
        if identity.scope not in _OF_JOBS:
            raise NoReplyError(_FORBIDDEN, f"a token of scope {identity.scope} makes no calls")
        job_id, trajectory_id = named(headers, session, shown if not identity.scope else "", identity.subject)
        for name, value in (("job", job_id), ("trajectory", trajectory_id)):
            if len(value) > _LONGEST_ID or "\x00" in value:
                raise NoReplyError(BAD_REQUEST, f"{name}: {value!r:.100}: must have at most {_LONGEST_ID} characters")
        if not job_id:
            raise NoReplyError(BAD_REQUEST, f"no job is named: give {JOB_HEADER}, or a trajectory's key")
        if identity.subject and job_id != identity.subject:
            raise NoReplyError(_FORBIDDEN, f"the token is for job {identity.subject!r}, not for {job_id!r}")
        is_named_by_key = not identity.scope and job_id == shown.partition("/")[0]
        job = await self._lives.named(job_id, headers.get(LIFE_HEADER, "")[:_LONGEST_LIFE])
        token_id = public_part(shown) if identity.scope else ""
        return Caller(job, trajectory_id, is_trainer=True, is_named_by_key=is_named_by_key, token_id=token_id)

    async def asks_for_tokens(self) -> bool:
        """Returns whether the scheduler asks for tokens.

        Raises:
            NoReplyError: The scheduler does not answer.
        """
        identity = await self._ask("")
        return identity is None or bool(identity.scope)

    async def _of_key(self, text: str, peer: str) -> Caller:
        try:
            key = read_key(text, self.secret, time.time())
        except KeyRefusedError as error:
            raise NoReplyError(UNKNOWN, f"the API key {error}") from None
        self._check_place(key, text, peer)
        if key.token_id and await self._ask("", key.token_id) is None:
            said = "the API key has ended with the token that it was issued to; its trainer issues another"
            raise NoReplyError(UNKNOWN, said)
        return Caller(await self._lives.of_key(key.job_id, key.life), key.trajectory_id, key.sampling)

    def _check_place(self, key: TrajectoryKey, text: str, peer: str) -> None:
        """Raises NoReplyError for a key out of its sandbox: the trajectory's, once it was shown there."""
        # Its payload alone: a signature can be written in several ways.
        name = hashlib.sha256(text.partition(".")[0].encode()).digest()
        if not is_sandbox(peer):
            if name in self._in_sandboxes:
                said = "the API key is bound to a sandbox, where it was shown: elsewhere its trainer shows another one"
                raise NoReplyError(_FORBIDDEN, said)
        elif plain_address(peer) != plain_address(sandbox_source(key.job_id, key.trajectory_id)):
            raise NoReplyError(_FORBIDDEN, "the API key is of a trajectory that this sandbox is not of")
        else:
            _remember(self._in_sandboxes, name, None, _MOST_BOUND)

    async def _ask(self, token: str, token_id: str = "") -> CallerIdentity | None:
        """Returns the scheduler's answer about a token, or about the one with a public part; None if it is unknown."""
        name, now = hashlib.sha256(f"{token}\n{token_id}".encode()).digest(), anyio.current_time()
        asked_at, identity = self._known.get(name, (float("-inf"), None))
        if now - asked_at >= _REMEMBERED_S:
            if name in self._known:
                # For those who call meanwhile: one question is enough.
                self._known[name] = (now, identity)
            identity = await self._ask_scheduler(token, token_id)
            _remember(self._known, name, (now, identity), _MOST_REMEMBERED)
        return identity

    async def _ask_scheduler(self, token: str, token_id: str) -> CallerIdentity | None:
        try:
            # Of another token than the caller's it tells a gateway, by the gateway's own.
            own = self._options
            options = own if token_id else replace(own, token=token or None, token_file=None)
        except CallsheetError:
            # No scheduler has such a token. One that asks for none takes any text for the caller's name.
            options, token = replace(self._options, token=None, token_file=None), ""
        try:
            async with AdminClient(self._target, options) as admin:
                return await admin.identity(token_id)
        except AccessDeniedError:
            return None
        except CallsheetError as error:
            raise of_error(error) from error


def _remember(known: OrderedDict[bytes, T], name: bytes, value: T, most: int) -> None:
    """Keeps something; what was kept the longest ago goes where there is too much."""
    known[name] = value
    known.move_to_end(name)
    if len(known) > most:
        known.popitem(last=False)


def unknown(said: str) -> NoReplyError:
    """The fault of a caller whom nobody knows."""
    return NoReplyError(UNKNOWN, f"{said}: show {_HOW}")


def public_part(token: str) -> str:
    """Returns what tells a token of the scheduler from others, without its secret."""
    return "_".join(token.split("_")[1:2])


def bearer_of(headers: Mapping[str, str]) -> str:
    """Returns the key or token of a request; empty if there is none."""
    scheme, _, text = headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" and text.strip() else headers.get("x-api-key", "").strip()


def named(headers: Mapping[str, str], session: str, shown: str, subject: str) -> tuple[str, str]:
    """Returns the job and the trajectory that a request names: headers go before the path, and that before the key.

    Args:
        headers: Of the request; names in them are percent-encoded.
        session: What its path names.
        shown: JOB or JOB/TRAJECTORY in place of a key, where no scheduler asks for tokens; else empty.
        subject: The job that the caller's token is for; empty for others.
    """
    job_of_key, _, trajectory_of_key = shown.partition("/")
    job_of_path, slash, trajectory_of_path = session.rpartition("/")
    job_of_header, trajectory_of_header = (unquote(headers.get(name, "")) for name in (JOB_HEADER, TRAJECTORY_HEADER))
    job_id = job_of_header or (job_of_path if slash else "") or subject or job_of_key
    return job_id, trajectory_of_header or trajectory_of_path or trajectory_of_key
