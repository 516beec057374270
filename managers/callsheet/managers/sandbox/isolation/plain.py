"""Sandboxes that are only processes in a directory, for machines without namespaces and for trusted code."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from callsheet.managers.sandbox.agent_client.program import AGENT_DIRECTORY, AGENT_START
from callsheet.managers.sandbox.backend import SandboxSpec
from callsheet.managers.sandbox.cgroups import GroupLayout
from callsheet.managers.sandbox.files.directories import remove_directory
from callsheet.managers.sandbox.files.root_filesystem import COMMAND_PATH
from callsheet.managers.sandbox.isolation.bubblewrap import find_system_python
from callsheet.managers.sandbox.isolation.kernel_bounds import command_limits
from callsheet.managers.sandbox.isolation.launcher_client import SpawnRequest
from callsheet.managers.sandbox.isolation.processes import ProcessPlan
from callsheet.managers.sandbox.janitor import kill_marked
from callsheet.managers.sandbox.settings import SandboxSettings


class PlainPlanner:
    """Plans the start of an agent without any isolation."""

    def __init__(self, settings: SandboxSettings, layout: GroupLayout | None, directory: Path, marker: str) -> None:
        """Args:
        directory: Where the directories of sandboxes are made.
        marker: Put into the environment of commands, so that the janitor finds those that outlive their agent.
        """
        self._settings = settings
        self._layout = layout
        self._directory = directory
        self._marker = marker

    @property
    def overlays(self) -> bool:
        """Never: without namespaces nothing can be mounted for one sandbox alone."""
        return False

    @property
    def begins_with_copies(self) -> bool:
        """Moved into their places."""
        return True

    def capabilities(self) -> Mapping[str, str]:
        """Describes in words the isolation that is missing."""
        return {
            "isolation": "none",
            "user": "the manager's own user: commands can read and change whatever the manager can",
            "network": "not isolated",
            "filesystem": "not isolated and not sized; a directory of its own below the data directory",
            "seccomp": "none",
            "landlock": "no",
        }

    def plan(self, spec: SandboxSpec, stages: Sequence[str], resources: ExitStack) -> ProcessPlan:
        """Returns the process to start."""
        del resources, stages
        # As commands see it, so that its absolute paths have no links on their way.
        home = Path(os.path.realpath(self._directory)) / spec.sandbox_id
        work, temporary = home / "work", home / "tmp"
        home.mkdir(parents=True)
        if spec.root.copy is not None:
            os.rename(spec.root.copy / "work", work)
            work.chmod(0o755)
        else:
            work.mkdir()
        temporary.mkdir()
        sources = [str(stage.source) for stage in self._settings.stages if stage.on_python_path]
        # The running interpreter comes last: only a system without a Python of its own falls back to it.
        path = COMMAND_PATH if find_system_python() is not None else f"{COMMAND_PATH}:{Path(sys.executable).parent}"
        controllers = self._layout.controllers if self._layout is not None else {}
        command = (sys.executable, "-I", "-S", str(AGENT_DIRECTORY / AGENT_START))
        return ProcessPlan(
            SpawnRequest([*command, "{fd:0}", str(work), str(temporary)], path=sys.executable),
            temporary=str(temporary),
            agent_directory=str(AGENT_DIRECTORY),
            environment={
                "PATH": path,
                "HOME": str(temporary),
                "TMPDIR": str(temporary),
                "LANG": "C.UTF-8",
                "CALLSHEET_SANDBOX_OF": self._marker,
                "CALLSHEET_SANDBOX": spec.sandbox_id,
                **({"PYTHONPATH": ":".join(sources)} if sources else {}),
            },
            packages=sources,
            limits=command_limits(spec, memory_counted="memory" in controllers, own_user=os.geteuid() != 0),
            clean_up=lambda: self._clean_up(home, spec.sandbox_id),
            confined_to=(str(work), str(temporary)),
            files_at=str(work),
        )

    def _clean_up(self, home: Path, sandbox_id: str) -> None:
        """Blocks: ends what outlived an agent that was killed, and removes the directory."""
        kill_marked(self._marker, sandbox_id)
        remove_directory(home)
