"""Puts the executors together from settings. Blocks for some milliseconds: call it before the event loop runs."""

from __future__ import annotations

from dataclasses import replace

import structlog
from callsheet.managers.node import usable_memory_mib
from callsheet.managers.sandbox.cgroups import GroupLayout, obtain_groups, probe_layout
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.executor.test_suite_executor import TestSuiteExecutor
from callsheet.managers.sandbox.files.images.builds import open_builds
from callsheet.managers.sandbox.files.images.layer_cache import LayerCache
from callsheet.managers.sandbox.files.images.sources import build_images
from callsheet.managers.sandbox.isolation.agent_backend import AgentBackend
from callsheet.managers.sandbox.isolation.bubblewrap import BubblewrapPlanner, find_bwrap
from callsheet.managers.sandbox.isolation.plain import PlainPlanner
from callsheet.managers.sandbox.isolation.processes import ProcessBackend, ProcessPlanner
from callsheet.managers.sandbox.janitor import ManagerDirectory, remove_leftovers
from callsheet.managers.sandbox.memory_ledger import MemoryLedger
from callsheet.managers.sandbox.provisioning.admitting_backend import AdmittingBackend
from callsheet.managers.sandbox.provisioning.creation_pace import CreationPace
from callsheet.managers.sandbox.provisioning.provisioner import Provisioner
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.managers.sandbox.ranking import ranking_problem
from callsheet.managers.sandbox.settings import NOT_ISOLATED, CoreSharing, Isolation, SandboxSettings

_log = structlog.get_logger(__name__)


def build_sandbox_executor(settings: SandboxSettings) -> SandboxExecutor:
    """Returns the executor of a sandbox manager; what an earlier process of it left is removed.

    Raises:
        SandboxCreateError: Sandboxes of this isolation cannot be made here.
        ManagerRunningError: Another process is this manager.
    """
    settings = _as_possible(settings)
    backend, directory = _build(settings)
    try:
        return SandboxExecutor(backend, settings, directory, _provisioner(settings, backend))
    except BaseException:
        directory.release()
        raise


def build_test_suite_executor(settings: SandboxSettings) -> TestSuiteExecutor:
    """Returns the executor of test-suite rewards in fresh sandboxes; raises what `build_sandbox_executor` raises."""
    settings = _as_possible(settings)
    backend, directory = _build(settings)
    return TestSuiteExecutor(backend, settings, directory)


def build_backend(settings: SandboxSettings, directory: ManagerDirectory) -> AgentBackend:
    """Returns a backend of the isolation that is asked for.

    Raises:
        SandboxCreateError: Something that it needs is missing.
    """
    if settings.isolation is Isolation.DOCKER:
        return _docker_backend(settings, directory)
    layout = _layout(settings)
    planner: ProcessPlanner
    if settings.isolation is Isolation.NONE:
        planner = PlainPlanner(settings, layout, directory.path, directory.marker)
    else:
        planner = BubblewrapPlanner(settings, layout, directory.path)
    return ProcessBackend(settings, planner, layout, directory.marker)


def _docker_backend(settings: SandboxSettings, directory: ManagerDirectory) -> AgentBackend:
    try:
        from callsheet.managers.sandbox.isolation.docker_engine.backend import DockerBackend
    except ModuleNotFoundError as error:
        raise SandboxCreateError(
            f"isolation: docker: {error}; in a checkout of Callsheet: pip install '.[docker]'"
        ) from error
    return DockerBackend(settings, directory.path, directory.marker)


def _provisioner(settings: SandboxSettings, backend: AdmittingBackend) -> Provisioner:
    provisioning = settings.provisioning
    # Beside what is removed at a start: layers outlive the process that made them.
    directory = settings.data_directory / "layers" / settings.manager_id
    bwrap = settings.bwrap or find_bwrap()
    cache = LayerCache(directory, provisioning.layer_cache_mib << 20, bwrap)
    return Provisioner(
        backend,
        cache,
        build_images(settings, cache),
        keep_set_ups=provisioning.keep_set_ups,
        warm_memory_mib=_warm_memory_mib(provisioning),
        largest_set_up_bytes=provisioning.largest_set_up_mib << 20,
        environment=[settings.isolation.value, *(str(stage.source) for stage in settings.stages)],
        builds=open_builds(settings, cache, bwrap),
        default_image=settings.docker_image if settings.isolation is Isolation.DOCKER else "",
    )


def _warm_memory_mib(provisioning: ProvisioningSettings) -> int:
    """Returns what ready sandboxes may hold: a few MiB each, until they are taken and what they may hold is booked."""
    return usable_memory_mib() if provisioning.warm_memory_mib is None else provisioning.warm_memory_mib


def _admitting(settings: SandboxSettings, backend: AgentBackend) -> AdmittingBackend:
    provisioning = settings.provisioning
    pace = CreationPace(provisioning.creation_pause_s, provisioning.longest_creation_pause_s)
    return AdmittingBackend(backend, _memory_ledger(settings, backend), pace, provisioning.most_creations)


def _memory_ledger(settings: SandboxSettings, backend: AgentBackend) -> MemoryLedger:
    """Returns a ledger of what sandboxes need where groups bound and freeze them, else of what is kept for life."""
    provisioning, able = settings.provisioning, backend.capabilities()
    limit_mib = provisioning.memory_limit_mib or provisioning.node_memory_mib
    lacking = [name for name in ("memory_hard", "freeze") if able.get(name) != "yes"]
    if provisioning.memory_by_need and limit_mib and not lacking:
        return MemoryLedger(limit_mib, by_need=True)
    if provisioning.memory_by_need:
        reason = (
            f"sandboxes have no groups for {' and '.join(lacking)}" if lacking else "the node's memory is not known"
        )
        _log.info("memory_booked_for_life", manager_id=settings.manager_id, reason=reason)
    return MemoryLedger(provisioning.memory_limit_mib)


def _as_possible(settings: SandboxSettings) -> SandboxSettings:
    """Returns the settings with plain sharing where commands cannot be ranked here; obtains groups before."""
    asks = settings.use_control_groups and settings.delegated_group is None
    if asks and settings.isolation is not Isolation.DOCKER and (told := obtain_groups()):
        _log.warning("groups_obtained", manager_id=settings.manager_id, told=told)
    if settings.core_sharing is not CoreSharing.RANKED:
        return settings
    problem = ranking_problem(
        settings.isolation,
        delegated_group=settings.delegated_group,
        use_control_groups=settings.use_control_groups,
    )
    if not problem:
        return settings
    _log.warning("cores_shared_plainly", manager_id=settings.manager_id, reason=problem)
    return replace(settings, core_sharing=CoreSharing.PLAIN)


def _build(settings: SandboxSettings) -> tuple[AdmittingBackend, ManagerDirectory]:
    if settings.isolation is Isolation.NONE:
        _log.warning("not_isolated", manager_id=settings.manager_id, reason=NOT_ISOLATED)
    directory = ManagerDirectory(settings.data_directory, settings.manager_id)
    try:
        remove_leftovers(directory, probe_layout(settings.delegated_group))
        return _admitting(settings, build_backend(settings, directory)), directory
    except BaseException:
        directory.release()
        raise


def _layout(settings: SandboxSettings) -> GroupLayout | None:
    layout = probe_layout(settings.delegated_group) if settings.use_control_groups else None
    if layout is None or settings.core_sharing is CoreSharing.RANKED or "cpuset" not in layout.controllers:
        return layout
    # A "cpu" tree of its own would weigh commands, or bound them where no cpuset does; it costs every command a move.
    return layout.without("cpu") if layout.own_tree("cpu") is not None else layout
