"""Loops of tool calls with the providers' own clients, as people write them: streamed, until no tool is called.

    scripts/programs/tool_chats.py openai-chat|openai-responses|anthropic-messages TASK

Base URL and key come from the variables that the clients read themselves.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import anthropic
import openai

SCHEMA: Any = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
MAX_TURNS = 10


def bash(arguments: Any) -> str:
    """Runs the command of a call; returns what it printed."""
    told = arguments if isinstance(arguments, dict) else json.loads(arguments)
    done = subprocess.run(["bash", "-c", told["command"]], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


def chat(task: str) -> str:
    """By chat completions."""
    tool: Any = {"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": task}]
    client = openai.OpenAI()
    for _ in range(MAX_TURNS):
        with client.chat.completions.stream(model="policy", messages=messages, tools=[tool]) as stream:
            message = stream.get_final_completion().choices[0].message
        messages.append(message.to_dict())
        if not message.tool_calls:
            return message.content or ""
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": bash(call.function.arguments)}
            for call in message.tool_calls
        ]
    raise SystemExit("The model does not come to an end.")


def responses(task: str) -> str:
    """By responses."""
    tool: Any = {"type": "function", "name": "bash", "parameters": SCHEMA, "strict": False}
    items: list[Any] = [{"role": "user", "content": task}]
    client = openai.OpenAI()
    for _ in range(MAX_TURNS):
        with client.responses.stream(model="policy", input=items, tools=[tool], store=False) as stream:
            response = stream.get_final_response()
        items += [item.to_dict() for item in response.output]
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return response.output_text
        items += [
            {"type": "function_call_output", "call_id": call.call_id, "output": bash(call.arguments)} for call in calls
        ]
    raise SystemExit("The model does not come to an end.")


def messages(task: str) -> str:
    """By Anthropic's messages."""
    tool: Any = {"name": "bash", "input_schema": SCHEMA}
    said: list[Any] = [{"role": "user", "content": task}]
    client = anthropic.Anthropic()
    for _ in range(MAX_TURNS):
        with client.messages.stream(
            model="policy", max_tokens=4096, system="Be brief.", messages=said, tools=[tool]
        ) as stream:
            message = stream.get_final_message()
        said.append({"role": "assistant", "content": message.content})
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": block.id, "content": bash(block.input)}
            for block in message.content
            if block.type == "tool_use"
        ]
        if not results:
            return "".join(block.text for block in message.content if block.type == "text")
        said.append({"role": "user", "content": results})
    raise SystemExit("The model does not come to an end.")


CHATS = {"openai-chat": chat, "openai-responses": responses, "anthropic-messages": messages}

if __name__ == "__main__":
    print(CHATS[sys.argv[1]](sys.argv[2]))
