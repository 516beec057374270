"""The built wheel with the extra `local`, outside of the checkout: a stack, hello, an evaluation and the demo.

Dependencies are those of this environment, so that nothing is downloaded twice. The sources of the checkout are not
among them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from callsheet.managers.sandbox.probe import probe_bubblewrap

pytestmark = [pytest.mark.timeout(600)]
_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "how-to" / "write-an-environment.md"
_DEADLINE_S = 280.0
# What the demo's commands import in sandboxes.
_STAGE = """
from callsheet.benchmarks.demo.inputs import prepare_inputs
from callsheet.benchmarks.demo.settings import DemoSettings
print(prepare_inputs(DemoSettings().cache, lambda _: None).staged)
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Runs a command without the checkout on its path, and returns its standard output."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    ended = subprocess.run(
        command, cwd=cwd, env=found, capture_output=True, text=True, timeout=_DEADLINE_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of `python` and `callsheet` of an environment that has the wheel."""
    directory = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, _ROOT, cwd=directory)
    (wheel,) = directory.glob("callsheet-*.whl")
    venv.create(directory / "environment", symlinks=True)
    python = directory / "environment" / "bin" / "python"
    (packages,) = (directory / "environment").glob("lib/python*/site-packages")
    # A path in a .pth file is searched, and .pth files in it are not read: so the editable checkout is not found.
    here = [path for path in sys.path if path.endswith("-packages")]
    (packages / "dependencies.pth").write_text("\n".join(here) + "\n")
    install = ("install", "--quiet", "--no-index", f"{wheel}[local]")
    # An installed Callsheet, the editable one, is another environment's and stays there.
    run(python, "-m", "pip", *install, "--ignore-installed", "--no-deps", cwd=directory)
    run(python, "-m", "pip", *install, cwd=directory)
    module = run(python, "-c", "import callsheet.client as room; print(room.__file__)", cwd=directory).strip()
    assert Path(module).is_relative_to(packages), "the checkout is on the path of the environment"
    return python.parent


def test_a_stack_hello_an_evaluation_and_the_demo(programs: Path, tmp_path: Path) -> None:
    (module,) = re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL)[:1]
    (tmp_path / "counting.py").write_text(module)
    (tmp_path / "hello.py").write_bytes((_ROOT / "examples" / "hello.py").read_bytes())
    isolation = "bubblewrap" if probe_bubblewrap().works else "none"
    staged = run(programs / "python", "-c", _STAGE, cwd=tmp_path).strip()
    arguments = ("--data-dir", "data", "--listen", "127.0.0.1:0", "--isolation", isolation, "--stage", staged)
    command = (str(programs / "callsheet"), "up", *arguments)
    with (
        (tmp_path / "up.log").open("w") as log,
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log, text=True) as up,
    ):
        try:
            assert up.stdout is not None
            told = re.search(r"callsheet is up on (\S+);", up.stdout.readline())
            assert told, (tmp_path / "up.log").read_text()
            address = told[1]
            said = run(programs / "python", "hello.py", cwd=tmp_path, CALLSHEET_SCHEDULER=address)
            assert [line.split(":")[0] for line in said.splitlines()] == ["succeeded"] * 4
            tasks = ("counting:CountingTasks", "--task-option", "count=2", "--results", "results.jsonl")
            replies = ("--model-dir", "bytes", "--max-tokens", "8")
            run(programs / "callsheet", "eval", *tasks, *replies, cwd=tmp_path, CALLSHEET_SCHEDULER=address)
            demo = ("demo", "--trajectories", "2", "--scheduler", address, "--json")
            report = json.loads(run(programs / "callsheet", *demo, cwd=tmp_path))
        finally:
            up.send_signal(signal.SIGTERM)
    assert up.returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    statuses = [row["status"] for row in rows if "status" in row]
    assert len(statuses) == 2
    assert set(statuses) <= {"scored", "failed"}
    assert report["rewards"]["bugs_total"] == 1
