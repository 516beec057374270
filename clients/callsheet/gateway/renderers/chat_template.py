"""Chat templates of Hugging Face's models: Jinja in a sandbox, with the functions that such templates count on.

The functions and the trimming of blocks are those of transformers' documentation of chat templates. transformers itself
is not needed.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from callsheet.gateway.chat import BadRequestError, Message, Tool
from callsheet.gateway.conversations.canonical import arguments_of, text_of
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_FIXED: Final = ("messages", "tools", "documents", "add_generation_prompt")


class ChatTemplate:
    """A chat template.

    Args:
        source: Jinja source.
        special_tokens: What it is always given: texts of tokens by its names, such as `bos_token`, and settings.
        today: The date that templates are told which ask for it.

    Raises:
        ValueError: The source is no template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, Any], today: datetime.date) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = today.strftime
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(f"the chat template cannot be read: {error}") from error

    def text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        template_arguments: Mapping[str, Any],
        broken: Callable[[Any], Any] = lambda value: value,
        *,
        generation_prompt: bool = True,
    ) -> str:
        """Returns messages as the template writes them.

        Args:
            messages: The messages.
            tools: The tools.
            template_arguments: What it is given besides.
            broken: Returns what is given with the control tokens in its texts broken.
            generation_prompt: Whether what has the model reply comes last.

        Raises:
            BadRequestError: It refuses them.
        """
        for name in template_arguments:
            if name in _FIXED or name in self._special_tokens:
                rule = "no argument that the gateway sets"
                raise BadRequestError(f"template_arguments.{name}", template_arguments[name], rule)
        try:
            return self._template.render(
                **broken(template_arguments),
                **self._special_tokens,
                messages=broken(_with_one_system([_for_template(*placed) for placed in enumerate(messages)])),
                tools=broken([dict(tool) for tool in tools]) or None,
                documents=None,
                add_generation_prompt=generation_prompt,
            )
        except (TemplateError, TypeError) as error:
            roles = [message.get("role") for message in messages]
            raise BadRequestError("messages", roles, f"what the model's chat template takes: {error}") from error


def _with_one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Joins the system messages at the beginning: some agents send several, and many templates take only one."""
    count = next((place for place, message in enumerate(messages) if message.get("role") != "system"), len(messages))
    if count < 2:
        return messages
    joined = "\n\n".join(message["content"] for message in messages[:count])
    return [{**messages[0], "content": joined}, *messages[count:]]


def _for_template(place: int, message: Message) -> dict[str, Any]:
    """Returns a message as templates want it: the content a text, the arguments of calls objects."""
    content = text_of(message.get("content"))
    if content is None:
        raise BadRequestError(f"messages[{place}].content", message["content"], "text: nothing else is rendered yet")
    rendered = {**message, "content": content}
    calls = message.get("tool_calls")
    if calls:
        rendered["tool_calls"] = [
            {
                **call,
                "function": {
                    **call.get("function", {}),
                    "arguments": arguments_of(call.get("function", {}).get("arguments")),
                },
            }
            for call in calls
        ]
    return rendered


class _GenerationBlocks(Extension):
    """Takes `{% generation %}`, which marks for trainers what the model says, as if it were not there."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Unlike Jinja's own filter it does not escape what means something in HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
