"""smolagents uses the facade: its executor and an agent, unchanged; run by scripts/others.py."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from typing import Any

from scripts.programs.steps import expect, raised, run_steps

smolagents: Any = importlib.import_module("smolagents")

REPLIES = (
    "Thought: count.\n<code>\nletters = {each: 'callsheet'.count(each) for each in 'le'}\nprint(letters)\n</code>",
    "Thought: the variable is still there.\n<code>\nfinal_answer({'sum': sum(letters.values())})\n</code>",
)


class Scripted(smolagents.Model):  # type: ignore[misc]
    """A model that says what it is to say."""

    def __init__(self) -> None:
        super().__init__()
        self._replies = iter(REPLIES)

    def generate(self, messages: Any, **kwargs: Any) -> Any:
        """Returns the next reply."""
        del messages, kwargs
        return smolagents.ChatMessage(role="assistant", content=next(self._replies))


def code(executor: Any) -> None:
    """Code keeps its variables; its last value is its output, a text without its quotes."""
    executor("x = 20")
    found = executor("print('said')\nx + 1")
    expect("output", (found.output, found.logs, found.is_final_answer), ("21", "said\n", False))


def variables(executor: Any) -> None:
    """Variables are sent into the sandbox."""
    executor.send_variables({"given": {"numbers": [1, 2, 3], "name": "ä"}})
    expect("output", executor("given['name'] * sum(given['numbers'])").output, "ääääää")


def errors(executor: Any) -> None:
    """An error of the code is told with its traceback, and the next code runs."""
    raised("AgentError", lambda: executor("1 / 0"), "ZeroDivisionError")
    expect("output", executor("'after'").output, "after")


def final_answer(executor: Any) -> None:
    """The tool that ends a run works in the sandbox."""
    executor.send_tools({"final_answer": smolagents.FinalAnswerTool()})
    found = executor("final_answer({'a': [1, 2]})")
    expect("answer", (found.output, found.is_final_answer), ({"a": [1, 2]}, True))


def agent() -> None:
    """An agent's code runs in the sandbox until it has its answer."""
    with smolagents.CodeAgent(tools=[], model=Scripted(), executor_type="e2b", verbosity_level=0) as made:
        expect("answer", made.run("How many l and e has callsheet?"), {"sum": 4})


def main() -> int:
    """Runs all steps; returns 1 if one differs."""
    logger = smolagents.monitoring.AgentLogger(level=smolagents.monitoring.LogLevel.OFF)
    executor = smolagents.remote_executors.E2BExecutor([], logger)
    steps = {step.__name__: partial(step, executor) for step in (code, variables, errors, final_answer)}
    differs = run_steps(steps)
    executor.cleanup()
    return int(run_steps({"agent": agent}) or differs)


if __name__ == "__main__":
    sys.exit(main())
