"""Task folders that tests of Harbor's format read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def make_task(tmp_path: Path) -> Callable[..., Path]:
    def make(
        environment: str = "allow_internet = false", rest: str = "", name: str = "task", dockerfile: bool = True
    ) -> Path:
        folder = tmp_path / name
        for place in ("environment", "tests", "solution"):
            (folder / place).mkdir(parents=True)
        (folder / "task.toml").write_text(f'version = "1.0"\n{rest}\n[environment]\n{environment}\n')
        (folder / "instruction.md").write_text("Do it.\n")
        (folder / "tests" / "test.sh").write_text("#!/bin/sh\n")
        if dockerfile:
            (folder / "environment" / "Dockerfile").write_text("FROM scratch\n")
        return folder

    return make
