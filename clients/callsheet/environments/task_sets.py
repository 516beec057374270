"""Finds a task set by its name. Packages offer theirs as entry points of the group `callsheet.environments`.

[project.entry-points."callsheet.environments"]
puzzles = "my_puzzles:PuzzleTasks"
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib import metadata
from inspect import signature
from typing import Any, Final, TypeAlias

from callsheet.environments.environment import TaskSet

GROUP: Final = "callsheet.environments"

TaskSetFactory: TypeAlias = Callable[..., TaskSet]
"""A class or a function that makes a task set of options, given by keyword."""


class TaskSetError(ValueError):
    """There is no such task set, or it cannot be made of these options. The message names the value and the rule."""


def task_set_names() -> tuple[str, ...]:
    """Returns the names of all task sets that are installed, in order; none is loaded for it."""
    return tuple(sorted(entry.name for entry in metadata.entry_points(group=GROUP)))


def load_task_set(name: str, **options: Any) -> TaskSet:
    """Makes a task set.

    Args:
        name: Its entry point's name, or "module:name".
        **options: As its factory takes them.

    Raises:
        TaskSetError: There is none of this name, it cannot be imported, or an option is none of its own.
    """
    factory = task_set_factory(name)
    try:
        signature(factory).bind(**options)
    except TypeError as error:
        taken = ", ".join(signature(factory).parameters) or "none"
        raise TaskSetError(f"options of {name!r}: {error}; it takes: {taken}") from None
    try:
        return factory(**options)
    except (ImportError, ValueError) as error:
        raise TaskSetError(f"{name!r} cannot be made: {error}") from error


def task_set_factory(name: str) -> TaskSetFactory:
    """Returns what makes a task set.

    Raises:
        TaskSetError: There is none of this name, or it cannot be imported.
    """
    try:
        found = _import(name) if ":" in name else _installed(name)
    except (ImportError, AttributeError) as error:
        raise TaskSetError(f"environment: {name!r} cannot be imported: {error}") from error
    if not callable(found):
        raise TaskSetError(f"environment: {name!r} is {type(found).__name__}; it must be a class or a function")
    factory: TaskSetFactory = found
    return factory


def _installed(name: str) -> object:
    entries = {entry.name: entry for entry in metadata.entry_points(group=GROUP)}
    if name not in entries:
        known = ", ".join(sorted(entries)) or "none is installed"
        raise TaskSetError(f"environment: {name!r} is none of {known}; another one is given as MODULE:NAME")
    return entries[name].load()


def _import(name: str) -> object:
    module, _, path = name.partition(":")
    if not module or not path:
        raise TaskSetError(f"environment: {name!r} must be a name, or MODULE:NAME")
    found: object = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
