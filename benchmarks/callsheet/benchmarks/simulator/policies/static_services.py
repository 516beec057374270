"""Static GPU services: every reward model has GPUs of its own for good, as SGLang or vLLM servers would.

The baseline of ARL-Tangram's MOPD experiment (arXiv 2603.13019: nine teachers, four GPUs each) and of RollArt's
dedicated reward GPUs (arXiv 2512.22560). At its best: GPUs are split so that the busiest model is as little busy as can
be, from the load of the whole run known ahead; models are loaded before the run; CPUs are shared by the operating
system.
"""

from __future__ import annotations

from callsheet.benchmarks.simulator.policies.os_sharing import OsSharing
from callsheet.benchmarks.simulator.policies.parts.api_calls import BackOff
from callsheet.benchmarks.simulator.policies.parts.baseline import baseline
from callsheet.benchmarks.simulator.policies.parts.gpu_calls import DedicatedGpus, place_instances
from callsheet.benchmarks.simulator.scenario import Scenario


def _applies(scenario: Scenario) -> bool:
    return bool(scenario.cluster.models) and place_instances(scenario) is not None


STATIC_SERVICES = baseline("static_services", OsSharing, DedicatedGpus, BackOff, _applies)
