"""How every dialect declares and names tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from callsheet.gateway.chat import BadRequestError, Tool
from callsheet.gateway.dialects.fields import Fields


def declared_function(tool: Fields, parameters: Fields | None) -> Tool:
    """A function as chat completions declare it; `strict` is left out, as replies are not constrained.

    Args:
        tool: What has its name and description.
        parameters: Its schema.

    Raises:
        BadRequestError: It has no name, or a field breaks its rule.
    """
    schema = parameters.values if parameters else {"type": "object", "properties": {}}
    return function(tool.name("name"), tool.text("description"), schema)


def function(name: str, description: str | None, parameters: Any) -> Tool:
    """A function as chat completions declare it."""
    described = {"description": description} if description else {}
    return {"type": "function", "function": {"name": name} | described | {"parameters": parameters}}


def called_arguments(call: Fields, name: str) -> str:
    """The arguments of a call as a JSON text. Agents send them as that, as an object, or leave them out.

    Raises:
        BadRequestError: They are something else.
    """
    given = call.values.get(name)
    if name not in call.values:
        raise call.error(name, "a string or an object")
    return json.dumps(given, ensure_ascii=False) if isinstance(given, Mapping) else call.text(name) or "{}"


def named_tool(place: str, name: str, tools: Sequence[Tool]) -> str:
    """The name of the tool that has to be called.

    Raises:
        BadRequestError: It is not among the tools, or its name is a word that says which tools may be called.
    """
    if name not in [tool["function"]["name"] for tool in tools]:
        raise BadRequestError(place, name, "the name of one of the tools")
    if name in {"auto", "none", "required"}:
        raise BadRequestError(place, name, "another name than auto, none and required")
    return name
