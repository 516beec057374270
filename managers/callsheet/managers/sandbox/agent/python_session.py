"""A Python session: runs steps one after another in one module, until its input ends.

A program of its own, run inside the sandbox as `python3 -u python_session.py`; it imports nothing but the standard
library and works with Python 3.8. Steps come on standard input: a line with a marker and two lengths, then so many
bytes of variables to set, as a literal, and of code. Descriptor 8 takes "MARKER STATUS" for each that has ended. Steps
themselves have an empty standard input. As in an interactive interpreter, the value of an expression that ends a step
is shown.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import os
import signal
import sys
import traceback
import types

STATUS_DESCRIPTOR = 8
INTERRUPTED = 143


class Interpreter:
    """The module that steps run in."""

    def __init__(self) -> None:
        self.module = types.ModuleType("__main__")
        self.module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = self.module
        self.steps = 0
        self.running = False

    def interrupt(self, number: int, frame: types.FrameType | None) -> None:
        """Ends the step that runs."""
        if self.running:
            raise KeyboardInterrupt

    def run(self, code: str) -> int:
        """Runs a step; returns its status. Its own `exit` ends the session."""
        self.steps += 1
        name = f"<step {self.steps}>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        try:
            self.running = True
            try:
                self.execute(code, name)
            finally:
                self.running = False
        except SystemExit:
            raise
        except KeyboardInterrupt:
            traceback.print_exc()
            return INTERRUPTED
        except BaseException as error:
            # Not the frames of this file.
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
                trace = trace.tb_next
            traceback.print_exception(type(error), error, trace)
            return 1
        return 0

    def execute(self, code: str, name: str) -> None:
        """Executes a step and shows the value of its last expression."""
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), self.module.__dict__)
        if isinstance(last, ast.Expr):
            sys.displayhook(eval(compile(ast.Expression(last.value), name, "eval"), self.module.__dict__))


def main() -> None:
    """Serves until the input ends."""
    # Copies that commands do not inherit.
    steps = os.fdopen(os.dup(0), "rb")
    status = os.dup(STATUS_DESCRIPTOR)
    os.close(STATUS_DESCRIPTOR)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    sys.argv[:] = [""]
    sys.path[0] = ""
    interpreter = Interpreter()
    signal.signal(signal.SIGUSR1, interpreter.interrupt)
    process = os.getpid()
    while True:
        words = steps.readline().split()
        if len(words) != 3:
            return
        marker, environment, code = words[0], steps.read(int(words[1])), steps.read(int(words[2]))
        if environment:
            os.environ.update(ast.literal_eval(environment.decode()))
        ended = interpreter.run(code.decode())
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if os.getpid() != process:
            # A child that the step forked and that did not exit: the steps are not its own.
            os._exit(ended)
        os.write(status, b"%s %d\n" % (marker, ended))


main()
