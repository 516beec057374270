"""Makes the executor of each manager from its command line. Rooms are imported when their manager is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from callsheet.cli.errors import load
from callsheet.deploy.choices import Isolation, ShareCores

if TYPE_CHECKING:
    from callsheet.managers.executor import Executor
    from callsheet.managers.sandbox.network.places import Place
    from callsheet.managers.sandbox.settings import SandboxSettings
    from callsheet.managers.settings import ManagerSettings


@dataclass(frozen=True, slots=True)
class SandboxSupply:
    """Where sandboxes begin and how many there may be; the attributes are the options of the same names."""

    images: Path | None = None
    layer_cache_mib: int = 20 << 10
    keep_set_ups: bool = True
    sandbox_memory_mib: int | None = None
    warm_memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class SandboxPlace:
    """Where and how sandboxes are made.

    Attributes:
        data_dir: What the manager keeps lies below it.
        isolation: What keeps sandboxes apart.
        stages: Directories that every sandbox can read.
        share_cores: Whether they share the manager's cores.
        shared_cpus: How many of them; None for all.
        docker_image: With isolation by Docker, the image of sandboxes that name none.
        control_group: A version 2 control group that was made for the manager.
        supply: Where they begin, and how many there may be.
        network: What env_resets may ask to reach, as "host:port".
    """

    data_dir: Path
    isolation: Isolation
    stages: tuple[Path, ...]
    share_cores: ShareCores = ShareCores.RANKED
    shared_cpus: int | None = None
    docker_image: str = ""
    control_group: Path | None = None
    supply: SandboxSupply = field(default_factory=SandboxSupply)
    network: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Engine:
    """What an inference manager serves; the attributes are the options of the same names."""

    model: str
    weights: Path | None
    seed: int
    slots: int
    kv_cache_tokens: int
    engine_threads: int | None
    load_at_first_use: bool


@dataclass(frozen=True, slots=True)
class Scorer:
    """What a reward manager scores with; the attributes are the options of the same names."""

    weights: Path | None
    seed: int
    load_at_first_use: bool


def build_sandbox(place: SandboxPlace, settings: ManagerSettings) -> Executor:
    """The executor of a sandbox manager.

    Raises:
        ValueError: An option breaks a rule.
        SandboxCreateError: Sandboxes of this isolation cannot be made here.
    """
    module = load("callsheet.managers.sandbox.build", "sandbox")
    executor: Executor = module.build_sandbox_executor(_sandbox_settings(place, settings))
    return executor


def build_reward(place: SandboxPlace | None, scorer: Scorer, settings: ManagerSettings) -> Executor:
    """The executor of a reward manager; without a place it runs no test suites.

    Raises:
        ValueError: An option breaks a rule.
        SandboxCreateError: Sandboxes of this isolation cannot be made here.
        WeightsError: The weights cannot be used.
    """
    module = load("callsheet.managers.reward.build", "reward")
    settings_module = load("callsheet.managers.reward.settings", "reward")
    reward_settings = settings_module.RewardSettings(
        weights=scorer.weights, seed=scorer.seed, load_at_first_use=scorer.load_at_first_use
    )
    test_suites: Executor | None = None
    if place is not None:
        sandbox_module = load("callsheet.managers.sandbox.build", "reward")
        test_suites = sandbox_module.build_test_suite_executor(_sandbox_settings(place, settings))
    executor: Executor = module.build_reward_executor(reward_settings, test_suites)
    return executor


def build_inference(engine: Engine, settings: ManagerSettings) -> Executor:
    """The executor of an inference manager.

    Raises:
        ValueError: An option breaks a rule.
        WeightsError: The weights cannot be used.
    """
    from callsheet.deploy.stack_settings import engine_threads

    module = load("callsheet.managers.inference.build", "inference")
    settings_module = load("callsheet.managers.inference.settings", "inference")
    cores_module = load("callsheet.managers.inference.cores", "inference")
    threads = engine_threads(len(_cores(settings)), engine.engine_threads)
    inference_settings = settings_module.InferenceSettings(
        model=engine.model,
        weights=engine.weights,
        seed=engine.seed,
        slots=engine.slots,
        threads=threads,
        cores=cores_module.reserved_cores(settings.node, threads),
        kv_cache_tokens=engine.kv_cache_tokens,
        load_at_first_use=engine.load_at_first_use,
    )
    executor: Executor = module.build_inference_executor(inference_settings)
    return executor


def build_noop(execution_s: float, start_log: Path | None, _: ManagerSettings) -> Executor:
    """The executor of the no-op manager."""
    module = load("callsheet.managers.noop", "sandbox")
    executor: Executor = module.NoopExecutor(module.NoopSettings(execution_s=execution_s, start_log=start_log))
    return executor


def _sandbox_settings(place: SandboxPlace, settings: ManagerSettings) -> SandboxSettings:
    module = load("callsheet.managers.sandbox.settings", "sandbox")
    sandbox_settings: SandboxSettings = module.SandboxSettings(
        manager_id=settings.manager_id,
        data_directory=place.data_dir.absolute(),
        isolation=module.Isolation(place.isolation.value),
        stages=tuple(module.StageDirectory(stage) for stage in place.stages),
        cores=frozenset(_cores(settings)),
        core_sharing=module.CoreSharing(place.share_cores.value),
        shared_cores=place.shared_cpus,
        docker_image=place.docker_image,
        delegated_group=place.control_group,
        network=_places(place.network),
        provisioning=module.ProvisioningSettings(
            images=place.supply.images,
            layer_cache_mib=place.supply.layer_cache_mib,
            keep_set_ups=place.supply.keep_set_ups,
            memory_limit_mib=place.supply.sandbox_memory_mib,
            warm_memory_mib=place.supply.warm_memory_mib,
        ),
    )
    return sandbox_settings


def _places(texts: tuple[str, ...]) -> tuple[Place, ...]:
    module = load("callsheet.managers.sandbox.network.places", "sandbox")
    try:
        return tuple(module.Place.parse(text) for text in texts)
    except ValueError as error:
        raise ValueError(f"network: {error}") from error


def _cores(settings: ManagerSettings) -> list[int]:
    return [core for numa_node in settings.node.numa_nodes for core in numa_node.cores]
