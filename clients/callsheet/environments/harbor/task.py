"""A task folder of either format as Callsheet takes it, and the commands that run it.

Nothing here reads files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeAlias

from callsheet.client import Command

Table: TypeAlias = Mapping[str, Any]
TESTS: Final = "/tests"
LOGS: Final = "/logs"

# Rewards begin with an empty home; Harbor's tests may use tools below that of the image's user.
_HOME: Final = """\
eval "HOME=~$USER"
case $HOME in /*) ;; *) [ "$USER" = root ] && HOME=/root || HOME=/ ;; esac
export HOME
"""
# The shell itself reads the results, because any program of the image may be the agent's.
_RUN: Final = f"""\
{_HOME}nl='
'
%s 2>&1
status=$?
"""
# A script that timeout(1) or a signal ended has judged nothing, whatever it wrote.
_ENDED: Final = "case $status in 124 | 129 | 130 | 131 | 137 | 143) exit $status ;; esac"
# What else a script ends with says nothing: the reward is what it wrote. As in Harbor reward.json comes first and is an
# object of numbers, and reward.txt is a number alone; anything else is left to be refused.
_HARBOR: Final = f"""\
{_RUN}{_ENDED}
for name in reward.json reward.txt; do
    [ -e {LOGS}/verifier/$name ] || continue
    found=
    while IFS= read -r line || [ -n "$line" ]; do found=$found$line$nl; done <{LOGS}/verifier/$name
    case $name$found in
        reward.txt*"{{"*) found="reward.txt: no number" ;;
        reward.txt* | reward.json*"{{"*) ;;
        *) found="reward.json: no object" ;;
    esac
    printf %%s "$found" >"$1"
    exit
done
case $status in 126 | 127) exit $status ;; esac
"""
_LOG: Final = f"{LOGS}/verifier/test-stdout.txt"
# All tests of pytest's summaries must have passed, and there must be one. A test of several runs counts once, and has
# failed if it failed in one of them. If a run states a count, its lines must be as many: then they were not cut, and
# nobody else wrote some. Without a summary there is no score.
_TERMINAL_BENCH: Final = f"""\
{_RUN.replace("%s", f"%s >{_LOG}")}passed=0 failed=0 summary=0 broken=0 lines=0 good=$nl bad=$nl
escape=$(printf '\\033[')
while IFS= read -r line || [ -n "$line" ]; do
    printf '%%s\\n' "$line"
    # Colours. An image may have no sed.
    while case $line in *"$escape"*[mK]*) ;; *) false ;; esac; do
        after=${{line#*"$escape"}} line=${{line%%%%"$escape"*}}
        line=$line${{after#*[mK]}}
    done
    case "$summary$line" in
        ?=*" short test summary info ="*) summary=1 lines=0 ;;
        "1PASSED "*)
            name=${{line#* }} lines=$((lines + 1))
            case $good$bad in *"$nl$name$nl"*) ;; *) good=$good$name$nl passed=$((passed + 1)) ;; esac
            ;;
        "1FAILED "* | "1ERROR "*)
            name=${{line#* }} name=${{name%%%% - *}}
            case $bad in
                *"$nl$name$nl"*) continue ;;
            esac
            bad=$bad$name$nl failed=$((failed + 1))
            case $good in *"$nl$name$nl"*) passed=$((passed - 1)) ;; esac
            ;;
        1!!!*) broken=1 ;;
        1[=0-9]*" passed"*" in "*s*)
            stated=${{line%%%% passed*}}
            case ${{stated##*[!0-9]}} in "" | $lines) ;; *) broken=1 ;; esac
            ;;
    esac
done <{_LOG}
{_ENDED}
if [ $failed -gt 0 ]; then
    score=0
elif [ $passed -eq 0 ]; then
    exit 0
elif [ $status -ne 0 ] || [ $broken -eq 1 ]; then
    echo "the summary is not that of tests which came to their end" >&2
    exit 3
else
    score=1
fi
echo "{{\\"score\\": $score, \\"passed\\": $passed, \\"failed\\": $failed}}" >"$1"
"""


class HarborTaskError(ValueError):
    """A task folder cannot be run as it is. The message names the task and what it needs, or what is wrong with it."""


class TaskFormat(Enum):
    """Formats of task folders."""

    HARBOR = "harbor"
    """task.toml, instruction.md, environment/, tests/test.sh, solution/solve.sh."""
    TERMINAL_BENCH = "terminal-bench"
    """task.yaml, Dockerfile, docker-compose.yaml, run-tests.sh, tests/, solution.sh: the first version's."""


@dataclass(frozen=True, slots=True)
class HarborTask:
    """One task.

    Attributes:
        name: Of its folder.
        folder: Where its files are.
        format: Whose format it has.
        instruction: What the agent is told.
        image: Name of its image; empty where a Dockerfile is built.
        context: Directory that its Dockerfile is built from.
        cpus: Cores that its commands may use.
        memory_mib: Memory of its sandbox, files included.
        storage_mib: The most of that for files.
        build_timeout_s: The most that the build of its image may take.
        agent_timeout_s: The most that the agent may take in all.
        verifier_timeout_s: The most that its tests may take.
        internet: Whether the sandbox may reach any place.
        allowed_hosts: Else the hosts that it may reach.
        workdir: Where its commands begin; empty for what the image says.
        agent_user: Whom the agent runs as; empty for the image's own user.
        verifier_user: Whom its tests run as; likewise.
        keeps_running: Whether what the agent left running goes on while the tests run.
        environment: Variables of all commands.
        verifier_environment: Further ones of its tests.
        solution_environment: Further ones of its solution.
    """

    name: str
    folder: Path
    format: TaskFormat
    instruction: str
    image: str = ""
    context: Path = Path()
    cpus: int = 1
    memory_mib: int = 2048
    storage_mib: int = 10240
    build_timeout_s: float = 600.0
    agent_timeout_s: float = 600.0
    verifier_timeout_s: float = 600.0
    internet: bool = True
    allowed_hosts: tuple[str, ...] = ()
    workdir: str = ""
    agent_user: str = ""
    verifier_user: str = ""
    keeps_running: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    verifier_environment: Mapping[str, str] = field(default_factory=dict)
    solution_environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def solution(self) -> Path:
        """The script that solves it."""
        return self.folder / ("solution/solve.sh" if self.format is TaskFormat.HARBOR else "solution.sh")

    @property
    def test_script(self) -> Path:
        """The script that runs its tests."""
        return self.folder / ("tests/test.sh" if self.format is TaskFormat.HARBOR else "run-tests.sh")


class Section:
    """A table of a configuration, read with messages that name task, table and key."""

    def __init__(self, task: str, name: str, table: Any) -> None:
        self._task = task
        self._name = name
        if not isinstance(table, Mapping):
            raise self.wrong("", table, "must be a table")
        self.table: Table = table

    def wrong(self, key: str, value: object, rule: str) -> HarborTaskError:
        """Returns the error for a value."""
        where = ".".join(filter(None, (self._name, key)))
        return HarborTaskError(f"task {self._task!r}: {where}: {str(value)[:200]!r}: {rule}")

    def section(self, key: str) -> Section:
        """Returns a table in it, an empty one where there is none."""
        return Section(self._task, ".".join(filter(None, (self._name, key))), self.table.get(key) or {})

    def seconds(self, key: str, default: float) -> float:
        """Returns a number of seconds."""
        value = self.table.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < math.inf):
            raise self.wrong(key, value, "must be seconds above 0")
        return float(value)

    def count(self, key: str, default: int, least: int = 1) -> int:
        """Returns a whole number; the next one above a fraction."""
        value = self.table.get(key)
        value = default if value is None else value
        if isinstance(value, float) and math.isfinite(value):
            value = math.ceil(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(key, value, f"must be a whole number of at least {least}")
        return value

    def text(self, key: str) -> str:
        """Returns a text, empty where there is none."""
        value = self.table.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, value, "must be a text")
        return value or ""

    def size_mib(self, key: str, former: str, default: int) -> int:
        """Returns a size in MiB: a number at `key`, or a text such as "2G" at the key of former versions."""
        text = self.text(former).strip().upper()
        if not text:
            return self.count(key, default)
        units = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
        try:
            return max(1, int(float(text.removesuffix("B").removesuffix("I")[:-1]) * units[text.rstrip("IB")[-1]]))
        except (KeyError, ValueError, IndexError):
            raise self.wrong(former, text, "must be a size such as 512M or 2G") from None

    def refuse(self, key: str, need: str) -> None:
        """Raises an error where a key is there and says more than nothing."""
        value = self.table.get(key)
        if value:
            raise self.wrong(key, value, f"it needs {need}, which sandboxes here do not have")


SOLUTION: Final = {TaskFormat.HARBOR: "/solution", TaskFormat.TERMINAL_BENCH: "/oracle"}


def started(script: str, text: bytes) -> str:
    """Returns how a script is started: as it says itself, and by bash where it says nothing."""
    return script if text.startswith(b"#!") else f"bash {script}"


def tests_command(task: HarborTask, text: bytes) -> Command:
    """Returns the command that scores; its score goes where "{score}" says.

    Args:
        task: The task.
        text: The script that runs its tests.
    """
    harbor = task.format is TaskFormat.HARBOR
    script = (_HARBOR if harbor else _TERMINAL_BENCH) % started(f"{TESTS}/{task.test_script.name}", text)
    variables = {"TEST_DIR": TESTS, **task.environment, **task.verifier_environment}
    return Command.argv("/bin/sh", "-c", script, "sh", "{score}", environment=variables)


def solution_command(task: HarborTask, text: bytes) -> Command:
    """Returns the command that solves a task."""
    script = f"{SOLUTION[task.format]}/{task.solution.name}"
    return Command.shell(
        started(script, text),
        environment={"DEBIAN_FRONTEND": "noninteractive", **task.environment, **task.solution_environment},
    )
