"""Task sets are found by name, and wrong names and options are refused by name."""

from __future__ import annotations

import subprocess
import sys

import pytest
from callsheet.environments import TaskSetError, load_task_set

from tests.support.word_environment import WordTasks

_WORDS = "tests.support.word_environment:WordTasks"


def test_a_task_set_is_found_by_module_and_name() -> None:
    assert load_task_set(_WORDS, count=5) == WordTasks(count=5)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("no-such-set", {}, "no-such-set"),
        ("no_such_module:Tasks", {}, "no_such_module"),
        ("tests.support.word_environment:Nothing", {}, "Nothing"),
        ("tests.support.word_environment:shlex", {}, "module"),
        (":Tasks", {}, "MODULE:NAME"),
        (_WORDS, {"colour": "red"}, "count, turns"),
    ],
)
def test_what_is_wrong_is_named(name: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(TaskSetError, match=said):
        load_task_set(name, **options)


def test_environments_need_neither_torch_nor_a_tokenizer() -> None:
    program = (
        "import sys, callsheet.environments\n"
        "heavy = {'torch', 'tokenizers', 'transformers', 'numpy', 'sqlalchemy', 'starlette', 'rich', 'typer'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == "[]"
