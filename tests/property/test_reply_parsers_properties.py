"""What a model writes is read in one pass, whatever it is: a whole call is found whole, and all else stays text."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from callsheet.environments.bash_replies import SandboxCommand, bash_wanted, read_report
from callsheet.gateway.model_json import read_json
from callsheet.gateway.renderers.reply_text import parse_text
from callsheet.gateway.renderers.tool_calls import ToolFormat, parse_calls
from hypothesis import given
from hypothesis import strategies as st

TOOLS = ({"type": "function", "function": {"name": "f", "parameters": {}}},)
OLD_FENCES = re.compile(r"```(?:bash|sh)\s*\n(.*?)```", re.DOTALL)
PIECES = (
    *("<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>", "<parameter="),
    *('{"name": "f", "arguments": ', "{", "}", "[", "]", '"', "\\", ",", ":", "1", "null", "<think>", "</think>"),
    *("```", "```bash", "```sh\n", "\n", "  ", "x", ";", "<|python_tag|>", "\x00", "\ud800", "[exit code ", "none]"),
)
SOUP = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=8).map("".join)
FORMS = [ToolFormat.HERMES, ToolFormat.QWEN_XML, ToolFormat.LLAMA_JSON]


@given(SOUP, st.sampled_from(FORMS), st.booleans())
def test_any_reply_is_read(text: str, form: ToolFormat, within: bool) -> None:
    content, calls = parse_calls(text, TOOLS, form)
    assert calls or content == text
    for call in calls:
        json.loads(call.arguments)
    parse_text(text, TOOLS, ["x"], tool_format=form, reasoning=True, within_reasoning=within)


@given(st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS, max_size=2), max_size=3), TEXTS)
def test_a_call_of_hermes_is_whole_whatever_its_arguments_say(arguments: dict[str, Any], said: str) -> None:
    said = said.replace("<tool_call>", "")
    call = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=False)
    content, calls = parse_calls(f"{said}\n<tool_call>\n{call}\n</tool_call>", TOOLS, ToolFormat.HERMES)
    assert [json.loads(each.arguments) for each in calls] == [arguments]
    assert content == (said.strip() and f"{said}\n").rstrip()


BALANCED = st.recursive(
    st.sampled_from(("x", "\n", " ", "</function>", "<function=g>", "{", '"')),
    lambda inner: st.tuples(
        st.sampled_from((("<tool_call>", "</tool_call>"), ("<parameter=b>", "</parameter>"))),
        st.lists(inner, max_size=3),
    ).map(lambda made: f"{made[0][0]}{''.join(made[1])}{made[0][1]}"),
    max_leaves=8,
)


@given(st.lists(st.lists(BALANCED, max_size=4).map("".join), min_size=1, max_size=3))
def test_a_call_in_xml_is_whole_where_the_markers_in_its_values_pair_off(values: list[str]) -> None:
    told = {f"k{place}": value for place, value in enumerate(values)}
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in told.items())
    text = f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call>"
    content, calls = parse_calls(text, TOOLS, ToolFormat.QWEN_XML)
    assert (content, [json.loads(each.arguments) for each in calls]) == ("", [told])


@pytest.mark.parametrize(
    "value", ["grep '<parameter=' x", "echo '</parameter>' | cat", "grep '<tool_call>' x", "a </function> b"]
)
def test_a_marker_alone_in_a_value_ends_nothing(value: str) -> None:
    body = f"<parameter=a>\n{value}\n</parameter>\n<parameter=b>\n1\n</parameter>\n"
    text = f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call>"
    (call,) = parse_calls(text, TOOLS, ToolFormat.QWEN_XML)[1]
    assert json.loads(call.arguments) == {"a": value, "b": "1"}


@given(SOUP)
def test_fenced_blocks_are_those_of_the_pattern_that_was(text: str) -> None:
    wanted = bash_wanted({"role": "assistant", "content": text})
    found = [each.command.program for each in wanted if isinstance(each, SandboxCommand)]
    assert found == [block.strip() for block in OLD_FENCES.findall(text) if block.strip()]


@given(SOUP)
def test_any_text_is_read_as_a_report(text: str) -> None:
    read_report(text)


HOSTILE: dict[str, Callable[[int], str]] = {
    "spaces": lambda count: "<tool_call>" + " " * count,
    "opened": lambda count: "<tool_call>" * count,
    "objects": lambda count: "<tool_call>{" * count,
    "functions": lambda count: "<tool_call><function=f>" * count,
    "ends": lambda count: "<tool_call>" * (count // 2) + "</function></tool_call>" * (count // 2),
    "parameters": lambda count: f"<tool_call><function=f>{'<parameter=' * count}</function></tool_call>",
    "values": lambda count: f"<tool_call><function=f>{'<parameter=a>' * count}</function></tool_call>",
    "closed": lambda count: f"<tool_call><function=f><parameter=a>{'</parameter>' * count}</function></tool_call>",
    "lines": lambda count: "```bash" + "\n" * count,
    "fences": lambda count: "```bash\n" * count,
    "brackets": lambda count: "[" * count,
    "digits": lambda count: "[exit code " + "1" * count,
    "semicolons": lambda count: '{"name": "f"}' + ";" * count,
}
PARSERS: dict[str, Callable[[str], object]] = {
    **{form.value: partial(parse_calls, tools=TOOLS, form=form) for form in FORMS},
    "fences": lambda text: bash_wanted({"role": "assistant", "content": text}),
    "report": read_report,
}


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("text", HOSTILE)
def test_ten_times_the_text_is_ten_times_the_steps(text: str, parser: str) -> None:
    few, many = (steps(partial(PARSERS[parser], HOSTILE[text](count))) for count in (500, 5_000))
    assert many <= 12 * few + 500


def steps(work: Callable[[], object]) -> int:
    """The lines of Python that work takes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        del frame, argument
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_json_beyond_its_depth_is_none() -> None:
    with pytest.raises(ValueError, match="deep"):
        read_json('{"a":' * 100_000)
