"""Payloads in Redis, for schedulers whose data directory does not outlive their machine.

    <namespace>:content:<sha256>    hash: chunk number -> bytes, "size" -> length
    <namespace>:holders:<sha256>    set: ids of the jobs that retain it
    <namespace>:used:<job id>       sorted set: what the job retains, by the milliseconds of its last use
    <namespace>:jobs                set: ids of all jobs that retain something
    <namespace>:put:<digest of the owner>:<sha256>   the owner put it lately; expires
    <namespace>:again:<sha256>      it was put lately when it was there already; expires
    <namespace>:incoming:<random>   what is being written; expires if its writer dies

What belongs together is changed by one script, so no failure leaves it half done. Content that no job retains expires.
A Redis cluster is not supported, since the scripts touch several slots.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from typing import Any, Final, Self

import anyio
from callsheet.credentials.masking import REDIS_URL_RULE
from callsheet.scheduler.store.payloads import (
    CHUNK_BYTES,
    DEFAULT_MAX_BYTES,
    DEFAULT_UNUSED_S,
    PayloadDurabilityError,
    PayloadNotFoundError,
    PayloadStore,
    PayloadStoreError,
    PayloadStoreFullError,
    PayloadsUnusableError,
    StoredPayload,
    Upload,
    check_key,
)
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

_TIMEOUT_S: Final = 30.0
_INCOMING_MS: Final = 600_000
_REMOVE_S: Final = 5.0
# How a script says so.
_OUT_OF_MEMORY: Final = "OOM "

# KEYS: incoming, content, holders, again. ARGV: fields that incoming must have, milliseconds to keep unused content.
_KEEP: Final = """
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('SET', KEYS[4], '', 'PX', ARGV[2])
  redis.call('UNLINK', KEYS[1])
else
  if redis.call('HLEN', KEYS[1]) ~= tonumber(ARGV[1]) then return 0 end
  redis.call('RENAME', KEYS[1], KEYS[2])
end
if redis.call('EXISTS', KEYS[3]) == 1 then
  redis.call('PERSIST', KEYS[2])
else
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return 1
"""

# ARGV: namespace, job id, milliseconds now, digests. Returns the first digest that is not there; or an empty string,
# and those that the job did not retain before.
_RETAIN: Final = """
for i = 4, #ARGV do
  if redis.call('EXISTS', ARGV[1] .. ':content:' .. ARGV[i]) == 0 then return {ARGV[i]} end
end
local new = {''}
for i = 4, #ARGV do
  redis.call('SADD', ARGV[1] .. ':holders:' .. ARGV[i], ARGV[2])
  if redis.call('ZADD', ARGV[1] .. ':used:' .. ARGV[2], ARGV[3], ARGV[i]) == 1 then new[#new + 1] = ARGV[i] end
  redis.call('PERSIST', ARGV[1] .. ':content:' .. ARGV[i])
end
redis.call('SADD', ARGV[1] .. ':jobs', ARGV[2])
return new
"""

# ARGV: namespace, job id, milliseconds to keep unused content, milliseconds before which the last use was (empty: it
# does not matter), digests. Returns how many go.
_LET_GO: Final = """
local used, gone = ARGV[1] .. ':used:' .. ARGV[2], 0
for i = 5, #ARGV do
  local holders, time = ARGV[1] .. ':holders:' .. ARGV[i], redis.call('ZSCORE', used, ARGV[i])
  if ARGV[4] == '' or (time and tonumber(time) < tonumber(ARGV[4])) then
    redis.call('ZREM', used, ARGV[i])
    redis.call('SREM', holders, ARGV[2])
    if redis.call('EXISTS', holders) == 0 then
      redis.call('PEXPIRE', ARGV[1] .. ':content:' .. ARGV[i], ARGV[3])
    end
    gone = gone + 1
  end
end
return gone
"""

# ARGV: namespace, job id, milliseconds after which a use is of another job of the id (empty: none is). A Redis that
# hung may run this long after its caller gave up, and the job was opened again.
_RELEASE: Final = """
local used, newest = ARGV[1] .. ':used:' .. ARGV[2], ARGV[3]
if newest == '' then newest = '+inf' end
for _, sha256 in ipairs(redis.call('ZRANGEBYSCORE', used, '-inf', newest)) do
  local holders = ARGV[1] .. ':holders:' .. sha256
  redis.call('ZREM', used, sha256)
  redis.call('SREM', holders, ARGV[2])
  if redis.call('EXISTS', holders) == 0 then
    local content, again = ARGV[1] .. ':content:' .. sha256, redis.call('PTTL', ARGV[1] .. ':again:' .. sha256)
    if again > 0 then redis.call('PEXPIRE', content, again) else redis.call('UNLINK', content) end
  end
end
if redis.call('EXISTS', used) == 0 then redis.call('SREM', ARGV[1] .. ':jobs', ARGV[2]) end
"""


class RedisPayloadStore(PayloadStore):
    """Payloads in Redis. Open it with `open`."""

    def __init__(
        self, client: Redis, namespace: str, max_bytes: int, unused_s: float, clock: Callable[[], float]
    ) -> None:
        super().__init__(max_bytes, unused_s, clock)
        self._client = client
        self._namespace = namespace
        self._unused_ms = max(1, round(unused_s * 1000))
        self._keep = client.register_script(_KEEP)
        self._retain = client.register_script(_RETAIN)
        self._release = client.register_script(_RELEASE)
        self._let_go = client.register_script(_LET_GO)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        namespace: str = "callsheet",
        max_bytes: int = DEFAULT_MAX_BYTES,
        unused_s: float = DEFAULT_UNUSED_S,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Connect to `url`, for instance "redis://host:6379/0".

        Args:
            url: Where Redis is.
            namespace: Prefix of all keys; schedulers that share a Redis need different ones.
            max_bytes: See `PayloadStore`.
            unused_s: See `PayloadStore`.
            clock: See `PayloadStore`.

        Raises:
            ValueError: `url` is none of Redis.
            PayloadDurabilityError: The server's settings do not keep what it acknowledges.
            redis.exceptions.RedisError: The server cannot be reached or used.
        """
        try:
            client = Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)
        except ValueError:
            raise ValueError(f"redis_url: {REDIS_URL_RULE}") from None
        try:
            await _check_durable(client)
        except BaseException:
            await client.aclose()
            raise
        return cls(client, namespace, max_bytes, unused_s, clock)

    @contextlib.asynccontextmanager
    async def _upload(self) -> AsyncIterator[Upload]:
        upload = _RedisUpload(self, f"{self._namespace}:incoming:{uuid.uuid4().hex}")
        try:
            with _as_store_errors():
                yield upload
        except BaseException:
            # Redis does so by itself later, if it cannot be asked now.
            with anyio.move_on_after(_REMOVE_S, shield=True), contextlib.suppress(RedisError):
                await self._client.unlink(upload.key)
            raise

    async def _keep_upload(self, upload: _RedisUpload, payload: StoredPayload, owner: str) -> None:
        keys = [f"{self._namespace}:{name}:{payload.sha256}" for name in ("content", "holders", "again")]
        if not await self._keep(keys=[upload.key, *keys], args=[upload.fields, self._unused_ms]):
            raise PayloadStoreError(f"the upload took a break of more than {_INCOMING_MS // 1000} s and has expired")
        if owner:
            await self._client.set(self._note(owner, payload.sha256), b"", px=self._unused_ms)

    async def size(self, sha256: str) -> int:
        check_key(sha256)
        size = await self._field(sha256, "size")
        if size is None:
            raise PayloadNotFoundError(sha256)
        return int(size)

    async def unknown_to(self, owner: str, job_id: str, sha256s: Collection[str]) -> list[str]:
        for sha256 in sha256s:
            check_key(sha256)
        with _as_store_errors():
            async with self._client.pipeline(transaction=False) as pipeline:
                for sha256 in sha256s:
                    pipeline.exists(self._note(owner, sha256))
                    pipeline.zscore(self._used(job_id), sha256)
                found = await pipeline.execute()
        noted = zip(sha256s, found[::2], found[1::2], strict=True)
        return [sha256 for sha256, put, used in noted if not put and used is None]

    async def retain(self, job_id: str, sha256s: Collection[str]) -> Collection[str]:
        for sha256 in sha256s:
            check_key(sha256)
        if not sha256s:
            return ()
        with _as_store_errors():
            missing, *new = await self._retain(args=[self._namespace, job_id, self._ms(0.0), *sha256s])
        if missing:
            raise PayloadNotFoundError(missing.decode())
        return [sha256.decode() for sha256 in new]

    async def release(self, job_id: str, sha256s: Collection[str], idle_s: float | None = None) -> int:
        used_before = "" if idle_s is None else self._ms(idle_s)
        with _as_store_errors():
            return int(await self._let_go(args=[self._namespace, job_id, self._unused_ms, used_before, *sha256s]))

    async def idle(self, job_id: str, idle_s: float) -> list[str]:
        # Every job has its own uses.
        with _as_store_errors():
            found: Any = await self._client.zrangebyscore(self._used(job_id), "-inf", f"({self._ms(idle_s)}")
        return [sha256.decode() for sha256 in found]

    async def release_job(self, job_id: str) -> None:
        with _as_store_errors():
            await self._release(args=[self._namespace, job_id, self._ms(0.0)])

    async def release_all_but(self, job_ids: Collection[str]) -> None:
        with _as_store_errors():
            members: Any = self._client.smembers(f"{self._namespace}:jobs")
            known = {member.decode() for member in await members}
            for job_id in known - set(job_ids):
                # Whenever it was used: the clock of the process before may have been ahead.
                await self._release(args=[self._namespace, job_id, ""])

    async def remove_unused(self) -> int:
        """Redis does it by itself."""
        return 0

    async def aclose(self) -> None:
        await self._client.aclose()

    def _ms(self, ago_s: float) -> int:
        """Milliseconds since the epoch, some seconds ago."""
        return round((self._clock() - ago_s) * 1000)

    async def _read(self, sha256: str) -> AsyncIterator[bytes]:
        size = await self.size(sha256)
        for number in range(-(-size // CHUNK_BYTES)):
            chunk = await self._field(sha256, str(number))
            if chunk is None:
                raise PayloadNotFoundError(sha256)
            yield chunk

    async def _field(self, sha256: str, field: str) -> bytes | None:
        # The client's annotations are for its synchronous and asynchronous form at once.
        with _as_store_errors():
            reply: Any = self._client.hget(self._content(sha256), field)
            value: bytes | None = await reply
        return value

    def _note(self, owner: str, sha256: str) -> str:
        return f"{self._namespace}:put:{hashlib.sha256(owner.encode()).hexdigest()}:{sha256}"

    def _used(self, job_id: str) -> str:
        return f"{self._namespace}:used:{job_id}"

    def _content(self, sha256: str) -> str:
        return f"{self._namespace}:content:{sha256}"


class _RedisUpload(Upload):
    def __init__(self, store: RedisPayloadStore, key: str) -> None:
        self._store = store
        self.key = key
        self.fields = 0

    async def write(self, chunk: bytes) -> None:
        await self._set(str(self.fields), chunk)

    async def keep(self, payload: StoredPayload, owner: str) -> None:
        await self._set("size", str(payload.size).encode())
        await self._store._keep_upload(self, payload, owner)

    async def _set(self, field: str, value: bytes) -> None:
        async with self._store._client.pipeline(transaction=True) as pipeline:
            pipeline.hset(self.key, field, value)
            pipeline.pexpire(self.key, _INCOMING_MS)
            await pipeline.execute()
        self.fields += 1


@contextlib.contextmanager
def _as_store_errors() -> Iterator[None]:
    """Turns errors of Redis into those of a payload store."""
    try:
        yield
    except OutOfMemoryError as error:
        raise PayloadStoreFullError("Redis", "Redis has reached its maxmemory") from error
    except RedisError as error:
        if str(error).startswith(_OUT_OF_MEMORY):
            raise PayloadStoreFullError("Redis", "Redis has reached its maxmemory") from error
        raise PayloadsUnusableError(error) from error


async def _check_durable(client: Redis) -> None:
    """Refuse settings under which an acknowledged write can be lost."""
    info: Any = await client.info()
    try:
        appendfsync = (await client.config_get("appendfsync")).get("appendfsync")
    except ResponseError as error:
        raise PayloadDurabilityError(f"Redis does not let its appendfsync setting be read: {error}") from error
    policy = str(info.get("maxmemory_policy", ""))
    for setting, value, required, holds in (
        ("appendonly", "yes" if info.get("aof_enabled") else "no", "yes", bool(info.get("aof_enabled"))),
        ("appendfsync", appendfsync, "always", appendfsync == "always"),
        ("maxmemory-policy", policy, "noeviction or volatile-*", not policy.startswith("allkeys")),
    ):
        if not holds:
            raise PayloadDurabilityError(f"Redis has {setting} = {value!r}, and durable payloads need {required}")
