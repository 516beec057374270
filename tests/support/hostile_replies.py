"""Odd replies of a model, drawn by a seed, and a table of what becomes of each: what a policy is told, or a failure."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from callsheet.client import Trajectory
from callsheet.environments import EpisodeTask, Message, TaskSet, load_task_set

from tests.support.expected import present

DONE: Final = "done"
"""The reply asks for nothing, which ends the episode; other entries of the table are what its policy is told."""
RAN: Final = r"\[exit code (none|-?\d+)\]"
REFUSED: Final = r"^policy: "
_NO_TEXT: Final = r"a text \"command\""
_NO_TOOL: Final = r"there is no tool"
_MOVES: Final = r"^invalid: "

# Texts that no program can be given; then those that it can.
BAD_TEXTS: Final[Mapping[str, str]] = {
    "nul": "echo a\0b",
    "only nul": "\0",
    "half a pair": "echo \ud83d",
    "other half": "\udc00 there",
    "megabytes": "echo " + "x" * 3_000_000,
    "one argument too long": "echo " + "y" * 200_000,
}
ODD_TEXTS: Final[Mapping[str, str]] = {
    "dots": "..",
    "climb": "cat ../../../../etc/passwd",
    "control": "printf '\x1b[2J\x07\x08'",
    "return": "echo a\r\necho b",
    "right to left": "echo '\u202e\u2066 \ufeff'",
    "special": "echo '<|im_end|><|endoftext|></tool_call>[/INST]'",
    "unclosed": "echo 'a",
    "option": "--version",
    "binary out": "printf '\\377\\376\\000\\001'",
    "long out": "head -c 300000 /dev/zero | tr '\\0' z",
    "deep": "echo '" + "[" * 20_000 + "'",
    "fails": "exit 7",
    "killed": "kill -9 $$",
}


@dataclass(frozen=True, slots=True)
class Hostile:
    """An odd reply.

    Attributes:
        name: Its kind.
        reply: The message.
        told: `DONE`, or a pattern of what its policy is told.
    """

    name: str
    reply: Message
    told: str


def call(name: object, arguments: object, call_id: object = "c1") -> Message:
    """Returns a reply with one call, whose arguments are a text unless they are one of a wrong type on purpose."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = {"name": name, "arguments": text}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "function": function}]}


def _calls(calls: object) -> Message:
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _said(content: object) -> Message:
    return {"role": "assistant", "content": content}


def _shapes(tool: str, bad: str) -> list[tuple[str, Message, str]]:
    """Replies whose shape is odd, whatever the tool; `bad` is what is told of arguments that are none."""
    deep = '{"command": ' + "[" * 100_000 + "]" * 100_000 + "}"
    many = [{"id": f"c{number}", "function": {"name": "no", "arguments": "{}"}} for number in range(200)]
    unknown = _NO_TOOL if tool == "bash" else _MOVES
    arguments = ["", "null", "[]", '{"a": NaN}', "9" * 6000, '"text"', '{"command": ', "{}", deep]
    return [
        *((f"arguments {text[:12]!r}", call(tool, text), bad) for text in arguments),
        ("arguments are a list", _calls([{"id": "c", "function": {"name": tool, "arguments": [1]}}]), bad),
        ("arguments are nothing", _calls([{"id": "c", "function": {"name": tool, "arguments": None}}]), bad),
        ("no function", _calls([{"id": "c", "function": None}]), unknown),
        ("a function that is a text", _calls([{"id": "c", "function": "bash"}]), unknown),
        ("calls of nothing", _calls([None, 3]), unknown),
        ("no name", call(None, {}), unknown),
        ("a name of a megabyte", call("n" * 1_000_000, {}), unknown),
        ("a name with half a pair", call("\ud800", {}), unknown),
        ("an id that is a number", call(tool, "", 7), bad),
        ("two hundred calls", _calls(many), unknown),
    ]


def bash_replies() -> list[Hostile]:
    """Odd replies to an environment with the tool bash: coding and harbor."""
    found: list[Hostile] = []
    for texts, told in ((BAD_TEXTS, REFUSED), (ODD_TEXTS, RAN)):
        for name, text in texts.items():
            found.append(Hostile(f"call: {name}", call("bash", {"command": text}), told))
            found.append(Hostile(f"block: {name}", _said(f"So:\n```bash\n{text}\n```\n"), told))
            found.append(Hostile(f"word: {name}", call("bash", {"command": ["true", text]}), told))
            found.append(Hostile(f"text: {name}", _said(text), DONE))
    paths = {"..": REFUSED, "a/../b": REFUSED, "a\0": REFUSED, "\udfff": REFUSED, "p" * 300: REFUSED, "nowhere": RAN}
    for path, told in paths.items():
        moved = {"command": "true", "working_directory": path}
        found.append(Hostile(f"directory: {path[:8]!r}", call("bash", moved), told))
    for name, value in (("", "x"), ("A=B", "x"), ("A", "\0"), ("\0", "x"), ("A-B", "x"), ("1", "x"), ("A", "\ud801")):
        arguments: dict[str, object] = {"command": "true", "environment": {name: value}}
        found.append(Hostile(f"variable: {name!r}={value!r}", call("bash", arguments), REFUSED))
    large = {"command": "true", "environment": {"A": "v" * 2_000_000}}
    found.append(Hostile("variable: megabytes", call("bash", large), REFUSED))
    odd: list[tuple[str, object]] = [("timeout_s", value) for value in (0, -1, 1e-12, 1e300, "5", True, [1], {"a": 1})]
    odd += [("working_directory", value) for value in (3, [".."], {"a": 1})]
    odd += [("environment", value) for value in (["A"], {"A": 1}, "A=1")]
    for field, given in odd:
        found.append(Hostile(f"{field}: {given!r}", call("bash", {"command": "true", field: given}), f"{field}: "))
    for command in ("", " \n", [], [""], [1], {"a": 1}, 5, None):
        told = REFUSED if command == [""] else _NO_TEXT
        found.append(Hostile(f"command: {command!r}", call("bash", {"command": command}), told))
    found.append(Hostile("a hundred blocks", _said("```sh\ntrue\n```\n" * 100), "one reply may have"))
    found += [Hostile(name, reply, told) for name, reply, told in _shapes("bash", _NO_TEXT)]
    for content in (
        "",
        None,
        [{"type": "text", "text": "```bash\nls\n```"}],
        5,
        {"a": 1},
        "```",
        "```bash",
        "```bash\n",
    ):
        found.append(Hostile(f"content: {content!r:.20}", _said(content), DONE))
    found += [Hostile("no content", {"role": "assistant"}, DONE), Hostile("calls: a text", _calls("bash"), DONE)]
    return found


def move_replies() -> list[Hostile]:
    """Odd replies to a game."""
    found = [
        Hostile(
            f"move: {name}",
            call("move", {"direction": text}),
            REFUSED if text in BAD_TEXTS.values() and len(text) < 99 else _MOVES,
        )
        for name, text in {**BAD_TEXTS, **ODD_TEXTS}.items()
    ]
    found += [Hostile(f"text: {name}", _said(text), _MOVES) for name, text in {**BAD_TEXTS, **ODD_TEXTS}.items()]
    for direction in ("", None, 5, ["up"], {"up": 1}, "\u00e9" * 999, "up" * 50_000, "jump"):
        found.append(Hostile(f"direction: {direction!r:.20}", call("move", {"direction": direction}), _MOVES))
    found += [Hostile(name, reply, told) for name, reply, told in _shapes("move", _MOVES)]
    for content in ("", None, 5, {"a": 1}, [{"type": "text", "text": "sideways"}]):
        found.append(Hostile(f"content: {content!r:.20}", _said(content), _MOVES))
    found += [Hostile("no content", {"role": "assistant"}, _MOVES), Hostile("calls: a text", _calls("move"), _MOVES)]
    return found


class HostilePolicy:
    """Says odd replies, one after another, and in the end a harmless one. It checks what it is told.

    Args:
        replies: What it says; one that is `DONE` is the last.
        last: What it says in the end.
    """

    def __init__(self, replies: Sequence[Hostile], last: Message) -> None:
        self._replies, self._last = list(replies), last
        self._said: Hostile | None = None

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[object]) -> Message:
        """Returns the next one; raises AssertionError if the table says something else of the one before."""
        del trajectory, tools
        if self._said is not None:
            last = max(place for place, each in enumerate(messages) if each["role"] == "assistant")
            told = "\n".join(str(each.get("content")) for each in messages[last + 1 :])
            expected = self._said.told != DONE and re.search(self._said.told, told, re.MULTILINE)
            assert expected, f"{self._said.name}: {self._said.told!r} is expected, and told was {told[:300]!r}"
        self._said = self._replies.pop(0) if self._replies else None
        return self._said.reply if self._said else self._last

    async def samples(self, trajectory: Trajectory) -> tuple[()]:
        """None."""
        del trajectory
        return ()


class PageTasks:
    """The task set of docs/how-to/write-an-environment.md, as it stands there."""

    def __init__(self) -> None:
        found = present(re.search(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL))
        module: dict[str, Any] = {}
        exec(found[1], module)
        self._page: TaskSet = module["CountingTasks"]()

    def tasks(self) -> Sequence[EpisodeTask]:
        """Returns its tasks."""
        return self._page.tasks()

    def environment(self, task: EpisodeTask) -> Any:
        """Returns its environment."""
        return self._page.environment(task)


def page_replies() -> list[Hostile]:
    """Odd replies to the page's environment, which runs each as a command and is done with it."""
    bad = [Hostile(f"text: {name}", _said(text), REFUSED) for name, text in BAD_TEXTS.items()]
    bad += [Hostile(f"content: {content!r}", _said(content), REFUSED) for content in ("", None)]
    bad += [Hostile("no content", {"role": "assistant"}, REFUSED), Hostile("calls", call("bash", {}), REFUSED)]
    odd = [Hostile(f"text: {name}", _said(text), RAN) for name, text in ODD_TEXTS.items()]
    return bad + odd + [Hostile("a list", _said([{"type": "text", "text": "ls"}]), RAN), Hostile("5", _said(5), RAN)]


@dataclass(frozen=True)
class HostileTasks:
    """Episodes of odd replies in one environment, by the first of its tasks.

    Attributes:
        environment_name: coding, frozen-lake, harbor or page.
        count: How many replies.
        seed: Of the draw.
        path: The folder of a task, for harbor.
    """

    environment_name: str
    count: int = 100
    seed: int = 0
    path: str = ""

    def tasks(self) -> Sequence[EpisodeTask]:
        """Returns an episode for each few replies."""
        said = self.episodes()
        drawn = {"environment_name": self.environment_name, "count": self.count, "seed": self.seed}
        return [EpisodeTask(f"hostile-{number}", {"drawn": drawn, "number": number}) for number in range(len(said))]

    def environment(self, task: EpisodeTask) -> Any:
        """Returns the environment of the first task."""
        del task
        inner = self._inner()
        return inner.environment(inner.tasks()[0])

    def episodes(self) -> list[list[Hostile]]:
        """Returns the replies of each episode: one ends with what is `DONE`, or after a few."""
        rng, drawn = random.Random(self.seed), list[Hostile]()
        table = _TABLES[self.environment_name]()
        while len(drawn) < self.count:
            drawn += rng.sample(table, len(table))
        said: list[list[Hostile]] = [[]]
        for each in drawn[: self.count]:
            said[-1].append(each)
            if each.told == DONE or len(said[-1]) == _MOST[self.environment_name]:
                said.append([])
        return [each for each in said if each]

    def _inner(self) -> TaskSet:
        if self.environment_name == "page":
            return PageTasks()
        return load_task_set(self.environment_name, **({"path": self.path} if self.path else {}))


def hostile(task: EpisodeTask) -> HostilePolicy:
    """Returns the policy of a task of `HostileTasks`."""
    drawn = HostileTasks(**task.data["drawn"])
    last = call("move", {"direction": "up"}) if drawn.environment_name == "frozen-lake" else call("submit", {})
    return HostilePolicy(drawn.episodes()[task.data["number"]], last)


_PAGE: Final = Path(__file__).parents[2] / "docs/how-to/write-an-environment.md"
_TABLES: Final[Mapping[str, Callable[[], list[Hostile]]]] = {
    "coding": bash_replies,
    "harbor": bash_replies,
    "frozen-lake": move_replies,
    "page": page_replies,
}
_MOST: Final = {"coding": 12, "harbor": 12, "frozen-lake": 12, "page": 1}
