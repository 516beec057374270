"""Settings of a tools manager, and the file that names its tools. Imports nothing heavy."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

from callsheet.credentials.secret_files import secret_file
from callsheet.managers.reward.hosted.model_spec import SCORE_PATTERN
from callsheet.managers.sandbox.network.destinations import Destination
from callsheet.managers.tools.quotas import KeyQuota, paced
from callsheet.options.declaration import PathRule, Setting
from callsheet.options.tables import from_table, read_toml

T = TypeVar("T")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsSettings:
    """Settings of a tools manager.

    Attributes:
        quota_redis: The Redis that has the true state of quotas; None for the memory of this manager.
    """

    tools_file: Annotated[
        Path | None,
        Setting(
            "A TOML file with the tools, judges, keys and quotas of a tools manager.",
            flag="--tools-file",
            variable="CALLSHEET_TOOLS_FILE",
            default_text="none",
            path=PathRule(exists=True, file=True, directory=False, resolve=True),
        ),
    ] = None
    quota_redis: Annotated[
        str | None,
        Setting(
            "The Redis in which managers that spend the same keys count together.",
            variable="CALLSHEET_QUOTA_REDIS",
            secret=True,
            default_text="none: this manager spends them alone",
        ),
    ] = field(default=None, repr=False)
    quota_namespace: Annotated[str, Setting("Prefix of the keys there; managers with one prefix are one node.")] = (
        "callsheet-quotas"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaTable:
    """Limits of a provider for a key: calls at once, and by minute; 0 for no limit.

    Attributes:
        requests_burst: Requests that the provider keeps for a burst; 0 if unknown.
        tokens_burst: Tokens that it keeps for a burst; 0 if unknown.
    """

    concurrency: int = 0
    requests_per_minute: float = 0.0
    requests_burst: int = 0
    tokens_per_minute: float = 0.0
    tokens_burst: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTable:
    """A spending key, from a file or a variable of the manager; without either it is only counted for.

    Attributes:
        header: The header that carries it.
        prefix: What stands before it there.
    """

    file: str = ""
    variable: str = ""
    header: str = "Authorization"
    prefix: str = "Bearer "


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingTable:
    """Fields that every tool and judge has.

    Attributes:
        key: The name of the key that pays; empty for none.
        model: The model, if the provider counts by it.
        concurrency: The most calls at once, whatever the key's quota allows.
        timeout_s: How long one call may take.
        tokens_per_call: Tokens that a call takes on average, for planning; a judge learns it.
        private_addresses: Whether names of its hosts may lead to private addresses.
    """

    key: str = ""
    model: str = ""
    concurrency: int = 64
    timeout_s: float = 60.0
    tokens_per_call: int = 0
    private_addresses: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTable(SpendingTable):
    """A tool: an API below `url` or on `hosts`, or a function of an installed package.

    Attributes:
        url: Where the API begins; paths of calls come behind it, and its host alone is sent the key.
        hosts: Further "host:port" that calls may name by a whole URL: a name, "*.NAME", "*" or an address.
        methods: HTTP methods that calls may use.
        headers: Headers that calls may set.
        max_response_bytes: Of a body; what is beyond is cut off.
        function: "package.module:function".
        variables: Variables of the manager that the function's process sees.
        idle_s: After so many seconds without a call a process ends.
    """

    url: str = ""
    hosts: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("GET", "HEAD", "POST")
    headers: tuple[str, ...] = ("accept", "accept-language", "content-type", "if-modified-since", "if-none-match")
    max_response_bytes: int = 1 << 20
    function: str = ""
    variables: tuple[str, ...] = ()
    idle_s: float = 30.0

    def __post_init__(self) -> None:
        if bool(self.function) == bool(self.url or self.hosts):
            raise ValueError("function: must be given, or url or hosts; not both")
        if self.function and not _FUNCTION.fullmatch(self.function):
            raise ValueError(f"function: {self.function!r}: must be package.module:function")
        for host in self.hosts:
            Destination.parse(host)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeTable(SpendingTable):
    """A judge behind an OpenAI-compatible API.

    Attributes:
        url: Such as https://api.example.com/v1, in front of /chat/completions.
        max_tokens: Of its answer, its thoughts included; one that is longer is no verdict.
        score_pattern: Finds the score; its first group is the number, and the last match counts.
    """

    url: str
    model: str
    tokens_per_call: int = 1000
    max_tokens: int = 2048
    score_pattern: str = SCORE_PATTERN


@dataclass(frozen=True, slots=True)
class ToolsFileContent:
    """The tables of a tools file, by name."""

    tools: Mapping[str, ToolTable]
    judges: Mapping[str, JudgeTable]
    keys: Mapping[str, KeyTable]
    quotas: Mapping[str, QuotaTable]

    def quota_of(self, spending: SpendingTable, name: str) -> KeyQuota:
        """Returns the quota of a service: of its key at its model, else of its key, else one of its own without limits.

        Raises:
            ValueError: A call may take more than it allows.
        """
        if spending.key and spending.key not in self.keys:
            raise ValueError(f"{name}: key: {spending.key!r}: is none of {', '.join(self.keys) or 'no keys'}")
        named = [each for each in (f"{spending.key}/{spending.model}", spending.key) if each in self.quotas]
        if not spending.key or not named:
            return KeyQuota(f"tool:{name}")
        table, largest = self.quotas[named[0]], max(self._largest_call(named[0]), 1)
        try:
            return KeyQuota(
                named[0],
                table.concurrency,
                paced(table.requests_per_minute, table.requests_burst, 1) if table.requests_per_minute else None,
                paced(table.tokens_per_minute, table.tokens_burst, largest) if table.tokens_per_minute else None,
            )
        except ValueError as error:
            raise ValueError(f"quotas.{named[0]}: {error}") from error

    def _largest_call(self, quota: str) -> int:
        spenders = [*self.tools.values(), *self.judges.values()]
        return max(
            each.tokens_per_call for each in spenders if each.key and quota in (each.key, f"{each.key}/{each.model}")
        )


def read_tools(path: Path) -> ToolsFileContent:
    """Reads a tools file.

    Raises:
        ValueError: It cannot be read, or breaks a rule.
    """
    content = read_toml(path)
    kinds = {"tools": ToolTable, "judges": JudgeTable, "keys": KeyTable, "quotas": QuotaTable}
    if unknown := sorted(content.keys() - kinds.keys()):
        raise ValueError(f"{path}: {unknown[0]!r}: must be one of {', '.join(kinds)}")
    read = ToolsFileContent(**{section: _read_section(kind, section, content) for section, kind in kinds.items()})
    if twice := sorted(read.tools.keys() & read.judges.keys()):
        raise ValueError(f"judges.{twice[0]}: must not have the name of a tool")
    return read


def read_secret(name: str, key: KeyTable) -> str:
    """Returns a key's secret; empty if it has none.

    Raises:
        ValueError: It cannot be read.
    """
    if key.file:
        try:
            return secret_file(key.file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"keys.{name}: file: {key.file}: cannot be read: {error}") from error
    if key.variable and key.variable not in os.environ:
        raise ValueError(f"keys.{name}: variable: {key.variable}: is not set")
    return os.environ.get(key.variable, "")


def _read_section(kind: type[T], section: str, content: Mapping[str, object]) -> dict[str, T]:
    tables = content.get(section, {})
    if not isinstance(tables, dict):
        raise ValueError(f"{section}: must be a table of tables")
    return {name: from_table(kind, f"{section}.{name}", table) for name, table in tables.items()}
