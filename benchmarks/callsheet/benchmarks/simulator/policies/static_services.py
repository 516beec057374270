"""Static GPU services: every reward model has GPUs of its own for good, as SGLang or vLLM servers would.

The baseline of ARL-Tangram's MOPD experiment (arXiv 2603.13019: nine teachers, four GPUs each) and of RollArt's
dedicated reward GPUs (arXiv 2512.22560). At its best: GPUs are split so that the busiest model is as little busy as can
be, from the load of the whole run known ahead; models are loaded before the run; CPUs are shared by the operating
system.
"""

from __future__ import annotations

from callsheet.benchmarks.simulator.policies.factory import PolicyFactory
from callsheet.benchmarks.simulator.policies.os_sharing import OsSharing
from callsheet.benchmarks.simulator.policies.parts.admission import Admission
from callsheet.benchmarks.simulator.policies.parts.api_calls import ApiCalls, BackOff
from callsheet.benchmarks.simulator.policies.parts.baseline import Baseline
from callsheet.benchmarks.simulator.policies.parts.gpu_calls import DedicatedGpus
from callsheet.benchmarks.simulator.policies.parts.gpu_split import place_instances
from callsheet.benchmarks.simulator.policies.parts.needs import largest_peak_mb
from callsheet.benchmarks.simulator.policies.parts.places import Places
from callsheet.benchmarks.simulator.policy import World
from callsheet.benchmarks.simulator.scenario import Scenario

NAME = "static_services"


def _make(world: World) -> Baseline:
    places = Places(world.scenario.cluster, largest_peak_mb(world.scenario))
    return Baseline(
        NAME,
        admission=Admission(world, places),
        cpu=OsSharing(world, places),
        gpu=DedicatedGpus(world),
        api=ApiCalls(world, BackOff),
    )


def _applies(scenario: Scenario) -> bool:
    return bool(scenario.cluster.models) and place_instances(scenario) is not None


STATIC_SERVICES = PolicyFactory(NAME, _make, _applies)
