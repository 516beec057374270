"""Packages staged for sandboxes, from a wheel that the test makes."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path

import anyio
import pytest
from callsheet.managers.sandbox.backend import CommandSpec
from callsheet.managers.sandbox.settings import Isolation, StageDirectory
from callsheet.managers.sandbox.staging import StagingError, stage_python_packages

from tests.support.sandboxes import Variant, open_sandbox, settings_for, variants


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wheels") / "staged_words-1.0-py3-none-any.whl"
    information = "staged_words-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("staged_words.py", "WORD = 'hello'\n")
        archive.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: staged-words\nVersion: 1.0\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    return path


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a directory that only its owner may enter; sandboxes are shown the contents of a stage all the same."""
    closed = tmp_path_factory.mktemp("closed")
    closed.chmod(0o700)
    return closed / "stages"


def test_packages_are_staged_once_and_readable_for_everybody(wheel: Path, stages: Path) -> None:
    first = stage_python_packages([str(wheel)], stages)
    marker = first / "marker"
    marker.write_text("")
    assert stage_python_packages([str(wheel)], stages) == first
    assert marker.exists()
    assert (first / "staged_words.py").read_text() == "WORD = 'hello'\n"
    assert stat.S_IMODE(first.stat().st_mode) & 0o555 == 0o555
    assert all(path.stat().st_mode & stat.S_IROTH for path in first.rglob("*.py"))
    assert list(first.rglob("*.pyc"))
    assert [path.name for path in stages.iterdir()] == [first.name]


@pytest.fixture(scope="module")
def stage(wheel: Path, stages: Path) -> StageDirectory:
    return StageDirectory(stage_python_packages([str(wheel)], stages))


@pytest.mark.anyio
@pytest.mark.parametrize("variant", variants(Isolation.BUBBLEWRAP, Isolation.NONE, others_by_night=True), ids=str)
async def test_staged_packages_are_imported_in_sandboxes(
    variant: Variant, stage: StageDirectory, tmp_path: Path
) -> None:
    async with open_sandbox(settings_for(variant, tmp_path / "data", (stage,))) as sandbox:
        command = CommandSpec(("python3", "-c", "import staged_words; print(staged_words.WORD)"))
        outcome = await sandbox.execute(command, anyio.Event())
        assert (outcome.stdout, outcome.stderr) == (b"hello\n", b"")


def test_what_cannot_be_staged_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StagingError, match=r"pip|python"):
        stage_python_packages([str(tmp_path / "missing-1.0-py3-none-any.whl")], tmp_path / "stages")
    assert list((tmp_path / "stages").iterdir()) == []
    with pytest.raises(ValueError, match="requirements"):
        stage_python_packages([], tmp_path)
    with pytest.raises(ValueError, match="--index-url"):
        stage_python_packages(["--index-url=x"], tmp_path)
