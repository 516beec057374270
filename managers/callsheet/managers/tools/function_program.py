"""The process of a function: imports it once, then answers calls, a line of JSON each.

Knows the standard library alone. Run as `python function_program.py package.module:function`. What the function prints
does not mix with its answers.
"""

import importlib
import json
import os
import sys

MOST_MESSAGE = 500


def main() -> None:
    """Answers on standard output until standard input ends. The first line says that it is ready, or why it is not."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module, _, name = sys.argv[1].partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except BaseException as error:
        print(raised(error), file=answers, flush=True)
        return
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        try:
            said = json.dumps({"value": function(**json.loads(line))})
        except BaseException as error:  # Whatever it is, the caller must learn of it.
            said = raised(error)
        print(said, file=answers, flush=True)


def raised(error: BaseException) -> str:
    """Returns the JSON of an exception for the caller."""
    return json.dumps({"raised": f"{type(error).__name__}: {error}"[:MOST_MESSAGE]})


if __name__ == "__main__":
    main()
