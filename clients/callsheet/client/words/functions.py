"""Rewards that are functions of installed packages: scripts that import one, call it and write its score."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from callsheet.client.errors import invalid
from callsheet.client.words.actions import RewardScript, Where
from callsheet.client.words.commands import Command

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
# Runs in whatever Python the sandbox has.
_PROGRAM = """
import importlib, json, sys
module, _, name = sys.argv[1].partition(":")
score = getattr(importlib.import_module(module), name)(**json.load(sys.stdin))
with open(sys.argv[2], "w") as file:
    json.dump(score if isinstance(score, dict) else float(score), file, default=float)
"""


def function_script(function: str, arguments: Mapping[str, object], image: str, service: str) -> RewardScript:
    """Returns the reward that calls a function; nothing of the caller is pickled.

    Raises:
        InvalidArgumentError: The function is no "package.module:function", or the arguments are not JSON.
    """
    if not isinstance(function, str) or not _FUNCTION.fullmatch(function):
        raise invalid("function", function, 'must be "package.module:function"')
    try:
        content = json.dumps(dict(arguments)).encode()
    except (TypeError, ValueError) as error:
        raise invalid("arguments", type(arguments).__name__, f"must be JSON by name: {error}") from error
    command = Command.argv("python3", "-c", _PROGRAM, function, "{score}", stdin=content)
    return RewardScript(command, where=Where.EMPTY, image=image, service=service)
