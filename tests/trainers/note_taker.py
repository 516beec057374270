"""An endpoint like OpenAI's whose model reads notes and says what is in them: for trainers with models of their own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from callsheet.client import Trajectory
from callsheet.environments import EpisodeTask, Message, Observation

from tests.trainers.notes import NoteEnvironment, NoteTasks


def reply_of(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the model says next: it reads the note that it is led to, and then says what it read last."""
    said = str(messages[-1]["content"])
    if messages[-1]["role"] != "tool":
        return _reads(said.removeprefix("What is in ").removesuffix("?"), len(messages))
    if said.startswith("see "):
        return _reads(said.removeprefix("see "), len(messages))
    return {"role": "assistant", "content": said}


def _reads(name: str, number: int) -> dict[str, Any]:
    function = {"name": "read", "arguments": json.dumps({"name": name})}
    call = {"id": f"call-{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = reply_of(asked["messages"])
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        found = {"id": "x", "object": "chat.completion", "created": 0, "model": asked["model"], "usage": usage}
        body = json.dumps({**found, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


@contextmanager
def note_taker() -> Iterator[str]:
    """Runs the endpoint; gives its base URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            serving.join()


class NotesWithoutProgram(NoteTasks):
    """One task whose environment needs a program that is nowhere."""

    def __init__(self) -> None:
        super().__init__(count=1)

    def environment(self, task: EpisodeTask) -> NoteEnvironment:
        return NoteEnvironmentWithoutProgram(task.data["number"])


class NoteEnvironmentWithoutProgram(NoteEnvironment):
    """Fails by its task."""

    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        (await trajectory.env_step(["no-such-program"])).unwrap()
        raise AssertionError("there is no such program")
