"""What a release needs agrees: the version, its changes, and the workflow that publishes it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

_ROOT = Path(__file__).parents[3]
_WORKFLOWS = _ROOT / ".github" / "workflows"
_WORKFLOW = _WORKFLOWS / "publish.yml"
_MODULE = re.compile(r"(?:import|from|-m) (callsheet(?:\.\w+)+)")


def test_the_version_has_its_changes_and_the_page_of_wheels() -> None:
    version = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\n## {version}" in (_ROOT / "CHANGELOG.md").read_text()
    assert f"callsheet-{version}-py3-none-any.whl" in (_ROOT / "docs" / "how-to" / "install.md").read_text()


@pytest.mark.parametrize("name", ["check", "nightly", "publish"])
def test_the_workflow_is_one(name: str) -> None:
    workflow = str(_WORKFLOWS / f"{name}.yml")
    for schema in ("vendor.github-workflows", "custom.github-workflows-require-timeout"):
        command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, workflow)
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_published_images_are_those_of_docker_compose() -> None:
    services = yaml.safe_load((_ROOT / "docker-compose.yml").read_text())["services"].values()
    published = yaml.safe_load(_WORKFLOW.read_text())["jobs"]["images"]["strategy"]["matrix"]["include"]
    assert {_image(each) for each in services if "build" in each} == {
        (each["image"], each["target"], each["extras"]) for each in published
    }


def _image(service: dict[str, Any]) -> tuple[str, str, str]:
    name = service["image"].removeprefix("callsheet-").partition(":")[0]
    return name, service["build"]["target"], service["build"].get("args", {}).get("EXTRAS", "")


def test_modules_named_in_images_and_scripts_are_there() -> None:
    """No linter reads them; `inputs` is imported where the images have the sandbox manager's extra alone."""
    files = [_ROOT / "Makefile", _ROOT / "docker-compose.yml", _WORKFLOW]
    files += [*(_ROOT / "deploy" / "images").iterdir(), *(_ROOT / "scripts").glob("*.sh")]
    named = {name for file in files if file.is_file() for name in _MODULE.findall(file.read_text())}
    assert "callsheet.benchmarks.demo.inputs" in named
    assert [name for name in sorted(named) if find_spec(name) is None] == []
    probe = "import sys, callsheet.benchmarks.demo.inputs; print(*sys.modules)"
    loaded = subprocess.run((sys.executable, "-c", probe), capture_output=True, text=True, check=True, timeout=60)
    assert {"filelock", "numpy", "ortools", "sqlalchemy"}.isdisjoint(loaded.stdout.split())
