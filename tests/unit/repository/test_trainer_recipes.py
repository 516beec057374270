"""The code in the recipes for trainers: it is Python, and what it takes from Callsheet is there."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

_PAGES = sorted((Path(__file__).parents[3] / "docs/how-to/trainers").glob("*.md"))
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_recipe_takes_what_is_there(page: Path) -> None:
    trees = [ast.parse(block) for block in _BLOCK.findall(page.read_text())]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    for node in imports:
        module = _module(node.module or "")
        if module is not None:
            # An adapter loads a name with its trainer, which is not here, as it is first looked at.
            known = {*dir(module), *getattr(module, "__all__", ())}
            assert {alias.name for alias in node.names} <= known


def _module(name: str) -> ModuleType | None:
    """Returns a module of Callsheet; None of another one, and of an adapter whose trainer is not installed here."""
    if name.split(".", maxsplit=1)[0] != "callsheet":
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("callsheet"):
            raise
        return None  # `make trainers` imports it


def test_there_are_recipes() -> None:
    assert {"slime", "miles", "openrlhf", "nemo-gym", "nemo-rl", "prime-rl"} <= {page.stem for page in _PAGES}
