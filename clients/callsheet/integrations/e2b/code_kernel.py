"""Runs Python code in a sandbox, and keeps its variables from one execution to the next.

This file is copied into sandboxes, and runs there as a program: it needs the standard library of Python 3.8 alone.

    code_kernel.py PLACE REQUEST

reads an execution request, has the kernel of the directory PLACE execute it, and prints what comes of it: JSON objects,
one a line, as clients of e2b_code_interpreter read them. It begins the kernel if there is none. A kernel executes one
request at a time. Whoever stops this program interrupts its execution.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import builtins
import contextlib
import fcntl
import inspect
import io
import json
import linecache
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from typing import Any

FLUSH_S = 0.1
_ENDED = {"type": "end_of_execution"}
_FORMATS = ("html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript")


def parse(code: str, name: str) -> ast.Module:
    """Returns code as a tree; lines that begin with `!` or `%pip` run a shell command.

    Raises:
        SyntaxError: It is no Python.
    """
    try:
        return ast.parse(code, name)
    except SyntaxError:
        lines = [_without_magic(line) for line in code.split("\n")]
        return ast.parse("\n".join(lines), name)


def _without_magic(line: str) -> str:
    bare = line.lstrip()
    if bare.startswith("%pip "):
        bare = "!python3 -m " + bare[1:]
    if not bare.startswith("!"):
        return line
    return line[: len(line) - len(line.lstrip())] + f"__run_shell__({bare[1:]!r})"


def result_of(value: object, *, is_main: bool) -> dict[str, Any]:
    """Describes a value in all formats that it has."""
    text = repr(value)
    if len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1]  # As in E2B's own sandboxes.
    result = {"type": "result", "is_main_result": is_main, "text": text}
    for name in _FORMATS:
        method = getattr(type(value), f"_repr_{name}_", None)
        shown = method(value) if callable(method) else None
        if shown is not None:
            result[name] = base64.b64encode(shown).decode() if isinstance(shown, bytes) else shown
    return result


class Printed:
    """Takes what an execution prints, and sends it in pieces."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._parts: list[tuple[str, str]] = []
        self._lock = threading.RLock()

    def put(self, stream: str, text: str) -> None:
        """Takes a part of `stdout` or `stderr`."""
        with self._lock:
            if self._parts and self._parts[-1][0] == stream:
                text = self._parts.pop()[1] + text
            self._parts.append((stream, text))
            if len(text) > 65536:
                self.flush()

    def flush(self) -> None:
        """Sends what there is."""
        with self._lock:
            parts, self._parts = self._parts, []
            for stream, text in parts:
                self._send({"type": stream, "text": text, "timestamp": time.time_ns()})


class _Stream(io.TextIOBase):
    def __init__(self, printed: Printed, name: str) -> None:
        self._printed = printed
        self._name = name

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._printed.put(self._name, text)
        return len(text)

    def flush(self) -> None:
        self._printed.flush()


class Kernel:
    """Executes code in one namespace."""

    def __init__(self) -> None:
        self._module = types.ModuleType("__main__")
        self._names = self._module.__dict__
        self._names.update(__builtins__=builtins, __run_shell__=self._run_shell, display=self._display)
        self._loop = asyncio.new_event_loop()
        self._count = 0
        self._interruptible = False
        self._printed = Printed(lambda event: None)
        self._send: Callable[[dict[str, Any]], None] = lambda event: None

    def serve(self, listener: socket.socket) -> None:
        """Executes what comes, for as long as its sandbox lives."""
        sys.modules["__main__"] = self._module
        signal.signal(signal.SIGINT, self._interrupted)
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as requests:
                line = requests.readline()
                if line:
                    self._execute_for(connection, json.loads(line))

    def execute(self, code: str, send: Callable[[dict[str, Any]], None]) -> None:
        """Executes code, and tells what comes of it."""
        self._send, self._printed = send, Printed(send)
        self._count += 1
        send({"type": "number_of_executions", "execution_count": self._count})
        kept = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _Stream(self._printed, "stdout"), _Stream(self._printed, "stderr")
        error: BaseException | None = None
        try:
            self._interruptible = True
            self._evaluate(code)
        except BaseException as caught:  # User code raises whatever it likes.
            error = caught
        finally:
            self._interruptible = False
            sys.stdout, sys.stderr = kept
        self._printed.flush()
        if error is not None:
            send(_described(error))

    def _evaluate(self, code: str) -> None:
        name = f"<cell {self._count}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        tree = parse(code, name)
        last = tree.body[-1] if tree.body else None
        last = last if isinstance(last, ast.Expr) else None
        if last is not None:
            del tree.body[-1]
        self._run(tree, name, "exec")
        if last is not None and (value := self._run(ast.Expression(last.value), name, "eval")) is not None:
            self._names["_"] = value
            self._display(value, is_main=True)

    def _run(self, tree: ast.Module | ast.Expression, name: str, mode: str) -> Any:
        compiled = compile(tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        found = eval(compiled, self._names)
        if compiled.co_flags & inspect.CO_COROUTINE:
            return self._loop.run_until_complete(found)
        return found

    def _display(self, value: object, is_main: bool = False) -> None:
        result = result_of(value, is_main=is_main)
        self._printed.flush()
        self._send(result)

    def _run_shell(self, command: str) -> None:
        running = subprocess.Popen(
            command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert running.stdout is not None
        try:
            for line in running.stdout:
                self._printed.put("stdout", line.decode(errors="replace"))
            running.wait()
        finally:
            running.kill()

    def _execute_for(self, connection: socket.socket, request: dict[str, Any]) -> None:
        sending = threading.Lock()

        def send(event: dict[str, Any]) -> None:
            # A client that is gone is seen by `_watch`.
            with sending, contextlib.suppress(OSError):
                connection.sendall(json.dumps(event).encode() + b"\n")

        ended = threading.Event()
        watching = threading.Thread(target=self._watch, args=(connection, ended), daemon=True)
        given = request.get("env_vars") or {}
        kept = {name: os.environ.get(name) for name in given}
        os.environ.update(given)
        watching.start()
        try:
            self.execute(request["code"], send)
        finally:
            ended.set()
            watching.join()
            for name, value in kept.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
        send(_ENDED)

    def _watch(self, connection: socket.socket, ended: threading.Event) -> None:
        """Sends what was printed, and interrupts the execution once its client is gone."""
        while not ended.wait(FLUSH_S):
            self._printed.flush()
            if select.select([connection], [], [], 0)[0] and not connection.recv(1, socket.MSG_PEEK):
                os.kill(os.getpid(), signal.SIGINT)

    def _interrupted(self, number: int, frame: object) -> None:
        del number, frame
        if self._interruptible:
            raise KeyboardInterrupt


def _described(error: BaseException) -> dict[str, Any]:
    # What is above the first cell is this program's.
    found = traceback.TracebackException.from_exception(error)
    while found.stack and not found.stack[0].filename.startswith("<cell "):
        del found.stack[0]
    text = "".join(found.format())
    return {"type": "error", "name": type(error).__name__, "value": str(error), "traceback": text}


def connect(place: str) -> socket.socket:
    """Returns a connection to the kernel of a directory, which is begun if there is none."""
    os.makedirs(place, mode=0o700, exist_ok=True)
    address = os.path.join(place, "kernel")
    connection = socket.socket(socket.AF_UNIX)
    with open(os.path.join(place, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Not begun while an error is handled: it would be the context of all errors of the kernel.
        if connection.connect_ex(address) != 0:
            # A kernel must not have this end too: it would never see its client leave.
            connection.close()
            _begin(address)
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(address)
        # A kernel that was begun here has the same open file, and would keep the lock.
        fcntl.flock(lock, fcntl.LOCK_UN)
    return connection


def _begin(address: str) -> None:
    if os.path.exists(address):
        os.unlink(address)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    # Its parent ends at once: a kernel outlives the execution that began it, which may be killed with all below it.
    if starter := os.fork():
        listener.close()
        os.waitpid(starter, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        sys.argv = [""]
        sys.path[0] = ""
        Kernel().serve(listener)
    finally:
        os._exit(1)


def main(place: str, request: str) -> int:
    """Has a request executed; returns 0, for a kernel that ends meanwhile too."""
    with open(request, "rb") as file:
        content = file.read()
    os.unlink(request)
    with connect(place) as connection, connection.makefile("rb") as events:
        connection.sendall(content + b"\n")
        for line in events:
            if json.loads(line) == _ENDED:
                return 0
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    died = {"type": "error", "name": "KernelDied", "value": "Python ended, and its variables are lost", "traceback": ""}
    sys.stdout.write(json.dumps(died) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
