"""Where nothing keeps commands in, `up` and its managers say so, once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_END_S = 60
_BANNER = "NOT ISOLATED: with --isolation none"


@pytest.mark.parametrize(("isolation", "banners"), [("none", 1), ("bubblewrap", 0)])
def test_up_and_its_managers_say_once_that_nothing_is_isolated(tmp_path: Path, isolation: str, banners: int) -> None:
    options = ["--managers", "sandbox", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)]
    command = [sys.executable, "-m", "callsheet.cli.main", "up", "--isolation", isolation, *options]
    said = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                said.append(line)
                if "manager is ready" in line:
                    break
        finally:
            process.terminate()
            said += process.communicate(timeout=_END_S)[1].splitlines()
    if any("bubblewrap cannot isolate" in line for line in said):
        pytest.skip("no bubblewrap here")
    assert "".join(said).count(_BANNER) == banners, "".join(said)
    assert (tmp_path / "logs" / "sandbox.log").read_text().count(_BANNER) == banners
