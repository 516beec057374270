"""A room above its budget of statements, or one that nobody gave a budget, fails the check."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.statement_budget import main

BUDGETS = '[tool.callsheet.statement-budget]\nscripts = 1\nmanagers = 1\n"managers/sandbox" = 2\n"tests/unit" = 50\n'
FILES = {
    "managers/callsheet/managers/kind.py": "A = 1\n",
    "managers/callsheet/managers/sandbox/walls/deep.py": "if True:\n    B = 2\n",
    "scripts/tool.py": '"""A docstring does not count."""\nimport os\nfrom os import sep\nA = 1\n"A text."\n',
    "tests/unit/test_much.py": "C = 3\n" * 50,
    "protos/callsheet/v1/generated_pb2.py": "D = 4\n" * 50,
    "protos/callsheet/v1/generated_values.py": "D = 4\n" * 50,
    "build/lib/copied.py": "E = 5\n" * 50,
    ".venv/lib/module.py": "F = 6\n" * 50,
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(BUDGETS, encoding="utf-8")
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_rooms_within_their_budgets_pass(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tree) == 0
    *lines, of_tests = capsys.readouterr().out.splitlines()[1:]
    told = {line.split()[0]: line.split()[1:] for line in lines}
    assert told == {
        "managers": ["1", "1", "1"],
        "managers/sandbox": ["2", "2", "2"],
        "scripts": ["1", "1", "5"],
        "all": ["code", "4", "4", "8"],
        "tests/unit": ["50", "50", "50"],
    }
    assert of_tests.split() == ["all", "tests", "50", "50", "50"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("managers/callsheet/managers/more.py", "A = 1\n", "managers has 2 statements; its budget is 1"),
        (
            "managers/callsheet/managers/sandbox/more.py",
            "A = 1\n",
            "managers/sandbox has 3 statements; its budget is 2",
        ),
        ("clients/callsheet/client/new.py", "A = 1\n", "clients/client has no budget"),
        ("tests/unit/test_more.py", "A = 1\n", "tests/unit has 51 statements; its budget is 50"),
        ("loose.py", "A = 1\n", ". has no budget"),
    ],
)
def test_what_a_room_has_too_much_is_told(
    tree: Path, name: str, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_text(text, encoding="utf-8")
    assert main(tree) == 1
    assert capsys.readouterr().err == f"statement_budget: {said}\n"


def test_a_budget_of_a_room_that_is_gone_is_told(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "scripts/tool.py").unlink()
    assert main(tree) == 1
    assert capsys.readouterr().err == "statement_budget: scripts has a budget and no code\n"
