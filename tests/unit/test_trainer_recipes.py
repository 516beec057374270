"""The code in the recipes for trainers: it is Python, and what it takes from Callsheet is there."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

_PAGES = sorted((Path(__file__).parents[2] / "docs/how-to/trainers").glob("*.md"))
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_recipe_takes_what_is_there(page: Path) -> None:
    trees = [ast.parse(block) for block in _BLOCK.findall(page.read_text())]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    for node in imports:
        if (node.module or "").split(".")[0] == "callsheet":
            module = importlib.import_module(node.module or "")
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_there_are_recipes() -> None:
    assert {"slime", "miles", "openrlhf", "nemo-gym", "nemo-rl", "prime-rl"} <= {page.stem for page in _PAGES}
