"""The tools of OpenAI's responses, each as a function that the model knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from callsheet.gateway.chat import BadRequestError, Tool, ToolForm
from callsheet.gateway.dialects.fields import Fields
from callsheet.gateway.dialects.tools import declared_function, function, named_tool

CUSTOM_INPUT: Final = "input"
"""The only parameter of the function that stands for a custom tool, which takes a text."""

LOCAL_SHELL: Final = "local_shell"
"""The name of the function that stands for the tool of that kind, and the kind."""

_KINDS: Final = ("custom", "function", LOCAL_SHELL, "namespace")
# A provider's search, and that of tools which are not told. A model may do without, and agents send them by default.
_LEFT_OUT: Final = ("tool_search", "web_search", "web_search_preview")
_SHELL: Final[Tool] = function(
    LOCAL_SHELL,
    "Runs a command on the machine of the user.",
    {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}, "description": "The program and its arguments."},
            "working_directory": {"type": "string"},
            "timeout_ms": {"type": "integer"},
            "env": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["command"],
    },
)


def known_name(name: str, namespace: str) -> str:
    """The name that the model knows a tool of a namespace by."""
    return f"{namespace}__{name}" if namespace else name


def declared_tools(body: Fields) -> tuple[list[Tool], dict[str, ToolForm]]:
    """The functions that the model is told of, and those among them that are something else in the dialect.

    Raises:
        BadRequestError: A tool is of a kind that the gateway does not know, or breaks a rule.
    """
    declared = [pair for tool in body.objects("tools") for pair in _declared(tool)]
    forms = {tool["function"]["name"]: form for tool, form in declared if form is not None}
    for name, count in Counter(tool["function"]["name"] for tool, _ in declared).items():
        if count > 1:
            raise BadRequestError("tools", name, "named once")
    return [tool for tool, _ in declared], forms


def _declared(tool: Fields) -> list[tuple[Tool, ToolForm | None]]:
    if tool.values.get("type") in _LEFT_OUT:
        return []
    match tool.choice("type", _KINDS):
        case "custom":
            return [(_custom(tool), ToolForm("custom", tool.name("name")))]
        case "namespace":
            return [_grouped(each, tool.name("name")) for each in tool.objects("tools")]
        case "local_shell":
            return [(_SHELL, ToolForm(LOCAL_SHELL, LOCAL_SHELL))]
        case _:
            return [(declared_function(tool, tool.object("parameters")), None)]


def _grouped(tool: Fields, namespace: str) -> tuple[Tool, ToolForm]:
    tool.choice("type", ("function",))
    declared = declared_function(tool, tool.object("parameters"))["function"]
    form = ToolForm("function", declared["name"], namespace)
    return function(known_name(form.name, namespace), declared.get("description"), declared["parameters"]), form


def _custom(tool: Fields) -> Tool:
    """A grammar is told to the model; its replies are not held to it."""
    told = tool.object("format")
    described = "The whole input of the tool, as a text."
    if told and told.choice("type", ("grammar", "text")) == "grammar":
        described += f" It follows this {told.name('syntax')} grammar:\n{told.name('definition')}"
    schema = {
        "type": "object",
        "properties": {CUSTOM_INPUT: {"type": "string", "description": described}},
        "required": [CUSTOM_INPUT],
    }
    return function(tool.name("name"), tool.text("description"), schema)


def read_tool_choice(body: Fields, tools: Sequence[Tool]) -> str:
    """The choice of tools.

    Raises:
        BadRequestError: It breaks a rule, or names a tool that there is not.
    """
    value = body.values.get("tool_choice")
    if value is None:
        return "auto"
    if isinstance(value, str):
        choice = body.choice("tool_choice", ("auto", "none", "required"))
        if choice == "required" and not tools:
            raise body.error("tool_choice", "auto or none where there are no tools")
        return choice
    chosen = body.required_object("tool_choice")
    if chosen.choice("type", ("custom", "function", LOCAL_SHELL)) == LOCAL_SHELL:
        return named_tool(chosen.path("type"), LOCAL_SHELL, tools)
    name = known_name(chosen.name("name"), chosen.text("namespace") or "")
    return named_tool(chosen.path("name"), name, tools)
