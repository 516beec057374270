"""Finds a task set by its name. Packages offer theirs as entry points of the group `callsheet.environments`.

[project.entry-points."callsheet.environments"]
puzzles = "my_puzzles:PuzzleTasks"
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable
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
    except Exception as error:
        raise TaskSetError(f"{name!r} cannot be made: {_told(error)}") from error


def task_set_factory(name: str) -> TaskSetFactory:
    """Returns what makes a task set.

    Raises:
        TaskSetError: There is none of this name, or it cannot be imported.
    """
    try:
        return import_by_name(name, "environment") if ":" in name else _installed(name)
    except TaskSetError:
        raise
    except Exception as error:
        raise TaskSetError(f"environment: {name!r} cannot be imported: {_told(error)}") from error


def import_by_name(name: str, what: str) -> Callable[..., Any]:
    """Returns the class or function that "module:name" names.

    Args:
        name: The name.
        what: What it is given as, for messages.

    Raises:
        TaskSetError: It cannot be imported, or is neither.
    """
    module, _, path = name.partition(":")
    if not module or not path:
        raise TaskSetError(f"{what}: {name!r} must be a name, or MODULE:NAME")
    try:
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        # A module runs as it is imported, and may raise anything.
        raise TaskSetError(f"{what}: {name!r} cannot be imported: {_told(error)}") from error
    if not callable(found):
        raise TaskSetError(f"{what}: {name!r} is {type(found).__name__}; it must be a class or a function")
    return found


def options_from_text(name: str, texts: Iterable[str]) -> dict[str, Any]:
    """Reads options of a task set as a command line gives them.

    Args:
        name: Of the task set.
        texts: Each is "name=value". A value is JSON where the option is no text and it is JSON; else it is that text.

    Raises:
        TaskSetError: There is no such task set.
    """
    parameters = signature(task_set_factory(name)).parameters
    options: dict[str, Any] = {}
    for text in texts:
        option, _, value = text.partition("=")
        declared = parameters[option].annotation if option in parameters else ""
        options[option] = value if declared in (str, "str") else _json_or_text(value)
    return options


def _told(error: Exception) -> str:
    """Returns an error's message, with its type where that says more than that something is wrong with a value."""
    return str(error) if isinstance(error, ImportError | ValueError) else repr(error)


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _installed(name: str) -> TaskSetFactory:
    entries = {entry.name: entry for entry in metadata.entry_points(group=GROUP)}
    if name not in entries:
        known = ", ".join(sorted(entries)) or "none is installed"
        raise TaskSetError(f"environment: {name!r} is none of {known}; another one is given as MODULE:NAME")
    factory: TaskSetFactory = entries[name].load()
    return factory
