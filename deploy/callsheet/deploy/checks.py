"""Checks before a stack starts what sandboxes can do on this machine, and the user's own model. Loads nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

from callsheet.deploy.roles import Role
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.inference.settings import DEFAULT_SERVICE
from callsheet.managers.kind import MANAGER_KINDS
from callsheet.managers.sandbox.cgroups import obtain_groups
from callsheet.managers.sandbox.probe import ProbeResult, probe_bubblewrap
from callsheet.managers.sandbox.ranking import ranking_problem
from callsheet.managers.sandbox.settings import NOT_ISOLATED, CoreSharing, Isolation
from callsheet.options.declaration import declared_options

# By the capability that would bound it, in the order of the harm. `docs/concepts/containment.md` has the whole table.
_BOUNDED_BY: Mapping[str, str] = {
    "memory_hard": "the memory of all its processes together",
    "socket_memory_hard": "buffers of sockets",
    "own_user": "pipes, files watched by epoll, signals that wait",
    "own_file_locks": "locks on files that all can read",
    "landlock": "what commands do to each other",
}
_NEVER = ("records of file locks", "the bandwidth of memory and disks")


def not_enforced(capabilities: Mapping[str, str]) -> list[str]:
    """Returns what nothing bounds for one sandbox in namespaces, in words, given the manager's capabilities."""
    return [*(words for name, words in _BOUNDED_BY.items() if capabilities.get(name) == "no"), *_NEVER]


def has_sandboxes(settings: StackSettings) -> bool:
    """Returns whether a manager of the stack makes sandboxes: its kind has the option for their isolation."""
    kinds = map(MANAGER_KINDS.get, settings.managers)
    return any(option.name == "isolation" for kind in kinds for option in declared_options(kind.settings))


def group_note(isolation: Isolation | None) -> str:
    """Gives the processes that this one starts control groups; returns a note for users, empty if none is needed.

    Call it before anything is started or probed. The groups of containers are the engine's; an operator names others.
    """
    named = isolation is Isolation.DOCKER or os.environ.get("CALLSHEET_CONTROL_GROUP")
    return "" if named else obtain_groups()


def isolation_problem(isolation: Isolation) -> str:
    """Returns why bubblewrap does not work here; empty if it does or is not asked for.

    Docker's manager finds out itself.
    """
    if isolation is not Isolation.BUBBLEWRAP:
        return ""
    found = _probed()
    return "" if found.works else found.reason or "a sandbox could not be made"


def core_sharing_problem(settings: StackSettings) -> str:
    """Returns why commands that are to be ranked share the cores plainly, as a clause; empty if they are ranked."""
    sandbox = settings.sandbox
    return ranking_problem(sandbox.isolation) if sandbox.core_sharing is CoreSharing.RANKED else ""


def isolation_warning(isolation: Isolation) -> str | None:
    """Returns a warning for users if nothing isolates commands; else None."""
    return NOT_ISOLATED if isolation is Isolation.NONE else None


def isolation_shortfalls(isolation: Isolation) -> str:
    """Returns the limits to which this machine does not hold sandboxes, in words; empty if that is not known before."""
    return ", ".join(not_enforced(_probed().capabilities)) if isolation is Isolation.BUBBLEWRAP else ""


@cache
def _probed() -> ProbeResult:
    return probe_bubblewrap()


def describe_own_model(settings: StackSettings) -> str | None:
    """Returns what will be served, in a line for people; None where no directory is given.

    Raises:
        ValueError: The directory does not hold a model.
    """
    directory, script = settings.inference.model_directory, settings.inference.script
    if directory is None or Role.INFERENCE not in settings.managers:
        return None
    if script is not None:
        return f"the service {DEFAULT_SERVICE} answers by {script} with the tokens of {directory}"
    from callsheet.managers.inference.torch_engine.settings import Dtype, served_dtype
    from callsheet.managers.models.config_file import WeightsError
    from callsheet.managers.models.hf_directory import read_model_directory

    try:
        described = read_model_directory(directory)
    except WeightsError as error:
        raise ValueError(f"model: {error}") from error
    summary = described.summary(served_dtype(Dtype.AUTO, "cpu", described.dtype))
    return f"the service {DEFAULT_SERVICE} is {summary}"
