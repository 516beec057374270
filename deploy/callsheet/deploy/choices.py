"""The named choices of the command line. Imports nothing."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """A process of a stack."""

    SCHEDULER = "scheduler"
    SANDBOX = "sandbox"
    INFERENCE = "inference"
    REWARD = "reward"
    NOOP = "noop"


class Isolation(StrEnum):
    """What keeps sandboxes apart."""

    BUBBLEWRAP = "bubblewrap"
    DOCKER = "docker"
    NONE = "none"


class ShareCores(StrEnum):
    """Whether all sandboxes of a manager share its cores; the values are those of the sandbox room's `CoreSharing`."""

    RANKED = "ranked"
    PLAIN = "plain"
    RESERVED = "reserved"


class Planner(StrEnum):
    """What decides which actions start; the values are those of `SchedulerSettings.planner`."""

    ELASTIC = "elastic"
    FIRST_COME = "first-come"


class LogFormat(StrEnum):
    """How a log line looks."""

    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    """The least important lines that are kept."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
