"""The truth about quotas in Redis, for managers that spend the same keys.

    <namespace>:spent:<quota>     hash: what is left of requests and tokens, as of when, and until when it is blocked
    <namespace>:holders:<quota>   sorted set: calls under way, by when they are taken for dead

One script does all, by the clock of Redis, so that the clocks of managers do not matter. What was not used for a day is
forgotten; a bucket that is not there is full.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote, urlsplit

from callsheet.credentials.masking import REDIS_URL_RULE, Mask, without_credentials
from callsheet.managers.tools.errors import QUOTA, ToolFailedError
from callsheet.managers.tools.quotas import ASK_AGAIN_S, KeyQuota, QuotaStore, Rate, ToldLimits
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from typing_extensions import override

_TIMEOUTS: Final[dict[str, Any]] = {"socket_timeout": 5.0, "socket_connect_timeout": 5.0}

# KEYS: spent, holders. ARGV: "take" or "settle", holder, requests per second and burst, tokens per second and burst
# (burst 0: no such limit), tokens; then for a take: most holders (0: no limit), seconds to hold, seconds to ask again;
# for a settle: seconds blocked, requests and tokens that are left (-1: not told). Returns the seconds to wait.
_SCRIPT: Final = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local known = redis.call('HMGET', KEYS[1], 'requests', 'tokens', 'as_of', 'blocked_until')
local as_of, blocked_until = tonumber(known[3] or now), tonumber(known[4] or 0)
local passed, arg = math.max(now - as_of, 0), {}
for i = 3, #ARGV do arg[i] = tonumber(ARGV[i]) end
local function refilled(level, per_second, burst)
  return math.min(tonumber(level or burst) + passed * per_second, burst)
end
local function lacking(units, level, per_second, burst)
  if burst == 0 or level >= units - 1e-9 then return 0 end
  return (units - level) / per_second
end
local requests, tokens = refilled(known[1], arg[3], arg[4]), refilled(known[2], arg[5], arg[6])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local wait = 0
if ARGV[1] == 'take' then
  local held = redis.call('ZSCORE', KEYS[2], ARGV[2])
  if not held then
    wait = math.max(blocked_until - now, lacking(1, requests, arg[3], arg[4]), lacking(arg[7], tokens, arg[5], arg[6]))
    if arg[8] > 0 and redis.call('ZCARD', KEYS[2]) >= arg[8] then wait = math.max(wait, arg[10]) end
    if wait <= 0 then requests, tokens = requests - 1, tokens - arg[7] end
  end
  if wait <= 0 then redis.call('ZADD', KEYS[2], string.format('%.17g', now + arg[9]), ARGV[2]) end
else
  if redis.call('ZREM', KEYS[2], ARGV[2]) == 1 then tokens = tokens - arg[7] end
  blocked_until = math.max(blocked_until, now + arg[8])
  if arg[9] >= 0 then requests = math.min(requests, arg[9]) end
  if arg[10] >= 0 then tokens = math.min(tokens, arg[10]) end
end
local function exact(number) return string.format('%.17g', number) end
redis.call('HSET', KEYS[1], 'requests', exact(requests), 'tokens', exact(tokens), 'as_of', exact(math.max(now, as_of)),
  'blocked_until', exact(blocked_until))
redis.call('EXPIRE', KEYS[1], 86400)
redis.call('EXPIRE', KEYS[2], 86400)
return exact(math.max(wait, 0))
"""


def check_redis(url: str) -> None:
    """Finds out whether a Redis can be used, before anything depends on it; blocks for some seconds at most.

    Raises:
        ValueError: It cannot.
    """
    try:
        with BlockingRedis.from_url(url, **_TIMEOUTS) as client:
            client.ping()
    except ValueError:
        raise ValueError(f"quota_redis: {REDIS_URL_RULE}") from None
    except (RedisError, OSError) as error:
        why = Mask(unquote(urlsplit(url).password or ""))(f"{type(error).__name__}: {error}")
        raise ValueError(f"quota_redis: {without_credentials(url)}: cannot be used: {why}") from error


class RedisQuotas(QuotaStore):
    """The truth of all managers with the same Redis and namespace, which all its keys begin with."""

    def __init__(self, url: str, namespace: str) -> None:
        # A connection may have ended since it was used last. The script may be repeated: an answer can be lost, too.
        self._client = Redis.from_url(url, retry=Retry(NoBackoff(), 1), **_TIMEOUTS)
        self._namespace = namespace
        self._script = self._client.register_script(_SCRIPT)

    @override
    async def take(self, quota: KeyQuota, holder: str, tokens: int, hold_s: float) -> float:
        return await self._run(quota, "take", holder, tokens, quota.concurrency, hold_s, ASK_AGAIN_S)

    @override
    async def settle(self, quota: KeyQuota, holder: str, further_tokens: int, told: ToldLimits) -> None:
        left = (-1 if each is None else each for each in (told.requests, told.tokens))
        await self._run(quota, "settle", holder, further_tokens, told.blocked_s, *left)

    @override
    async def close(self) -> None:
        await self._client.aclose()

    async def _run(self, quota: KeyQuota, verb: str, holder: str, tokens: int, *rest: float) -> float:
        keys = [f"{self._namespace}:{name}:{quota.name}" for name in ("spent", "holders")]
        arguments: list[str | float] = [verb, holder, *_bucket(quota.requests), *_bucket(quota.tokens), tokens, *rest]
        try:
            answer: Any = await self._script(keys=keys, args=arguments)
        except RedisError as error:
            # Not with its text: a URL may hold a password.
            message = f"the Redis of quotas cannot be used: {type(error).__name__}"
            raise ToolFailedError(QUOTA, "quota_store_unavailable", message) from error
        return float(answer)


def _bucket(rate: Rate | None) -> tuple[float, float]:
    return (0.0, 0.0) if rate is None else (rate.per_second, float(rate.burst))
