"""Which policies a comparison has, and the settings at which each is tried: the best counts, at every point anew."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from callsheet.benchmarks.simulator.kv.policies.cache_aware import CacheAware
from callsheet.benchmarks.simulator.kv.policies.plain import LeastLoaded, RoundRobin, Sticky
from callsheet.benchmarks.simulator.kv.policies.thunder_agent import ThunderAgent
from callsheet.benchmarks.simulator.kv.policies.tool_boundary import ToolBoundary
from callsheet.benchmarks.simulator.kv.world import KvPolicy, KvWorld

OURS, PLAIN, CACHE_AWARE, THUNDER = "callsheet", "plain", "cache_aware", "thunder_agent"


class Variant(NamedTuple):
    """A policy at one setting.

    Attributes:
        family: Whose settings are compared with each other.
        name: Of the setting.
        usual: Whether it is what one gets who sets nothing.
        longest_prefix_first: Whether engines serve those in line with the most tokens cached first.
    """

    family: str
    name: str
    make: Callable[[KvWorld], KvPolicy]
    usual: bool = False
    longest_prefix_first: bool = False


def _on_both_queues(family: str, name: str, make: Callable[[KvWorld], KvPolicy], *, usual: bool) -> list[Variant]:
    longest = Variant(family, f"{name}, longest prefix first", make, longest_prefix_first=True)
    return [Variant(family, name, make, usual), longest]


VARIANTS = (
    Variant(OURS, "tool boundary", ToolBoundary, usual=True),
    *_on_both_queues(PLAIN, "least loaded", LeastLoaded, usual=True),
    *_on_both_queues(PLAIN, "round robin", RoundRobin, usual=False),
    *_on_both_queues(PLAIN, "sticky", Sticky, usual=False),
    *_on_both_queues(CACHE_AWARE, "difference 64", partial(CacheAware, difference=64), usual=True),
    *_on_both_queues(CACHE_AWARE, "difference 16", partial(CacheAware, difference=16), usual=False),
    *_on_both_queues(CACHE_AWARE, "difference 4", partial(CacheAware, difference=4), usual=False),
    Variant(THUNDER, "5 s", ThunderAgent, usual=True),
    Variant(THUNDER, "5 s, decay", partial(ThunderAgent, decay=True)),
    Variant(THUNDER, "5 s, weight 0.5", partial(ThunderAgent, acting_weight=0.5)),
    Variant(THUNDER, "1 s", partial(ThunderAgent, interval_s=1.0)),
    Variant(THUNDER, "1 s, decay", partial(ThunderAgent, interval_s=1.0, decay=True)),
    Variant(THUNDER, "1 s, weight 0.5", partial(ThunderAgent, interval_s=1.0, acting_weight=0.5)),
)
RIVALS = (PLAIN, CACHE_AWARE, THUNDER)
