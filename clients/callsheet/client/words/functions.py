"""Rewards that are functions of installed packages: scripts that import one, call it and write its score."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from callsheet.client.errors import invalid
from callsheet.client.words.actions import RewardScript
from callsheet.client.words.commands import Command
from callsheet.v1.action_values import Where

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
# Runs in whatever Python the sandbox has.
_PROGRAM = """
import importlib, json, sys
module, _, name = sys.argv[1].partition(":")
score = getattr(importlib.import_module(module), name)(**json.load(sys.stdin))
if hasattr(score, "__await__"):
    import asyncio
    score = asyncio.run(score)
if isinstance(score, list):
    [score] = score
if isinstance(score, dict):
    numbers = {name: float(value) for name, value in score.items() if hasattr(value, "__float__")}
    score = {**numbers, "score": float(score["score"])}
else:
    score = float(score)
with open(sys.argv[2], "w") as file:
    json.dump(score, file)
"""


def function_script(function: str, arguments: Mapping[str, object], image: str, service: str) -> RewardScript:
    """Returns the reward that calls a function; nothing of the caller is pickled.

    Raises:
        InvalidArgumentError: The function is no "package.module:function", or the arguments are not JSON.
    """
    if not isinstance(function, str) or not _FUNCTION.fullmatch(function):
        raise invalid("function", function, 'must be "package.module:function"')
    try:
        content = json.dumps(dict(arguments), default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise invalid("arguments", type(arguments).__name__, f"must be JSON by name: {error}") from error
    command = Command.argv("python3", "-c", _PROGRAM, function, "{score}", stdin=content)
    return RewardScript(command, where=Where.EMPTY, image=image, service=service)


def _plain(value: object) -> object:
    """Numbers and arrays of numpy, and tensors, as JSON has them; rows of trainers are full of them."""
    tolist: Callable[[], object] | None = getattr(value, "tolist", None)
    if tolist is None:
        raise TypeError(f"{type(value).__name__} is none of JSON's types")
    return tolist()
