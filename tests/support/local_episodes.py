"""Runs the actions of one demo episode as plain processes in a directory, behind the client's fake."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from callsheet.client import (
    Command,
    CommandResult,
    EnvReset,
    EnvResetResult,
    EnvStep,
    Failed,
    FailureKind,
    Generate,
    GenerateResult,
    Outcome,
    Reason,
    RewardModel,
    RewardResult,
    RewardTests,
    SandboxFile,
    Succeeded,
)
from callsheet.client.testing import FakeClient

_PATH = f"/usr/local/bin:/usr/bin:/bin:{Path(sys.executable).parent}"
_TIMEOUT_S = 30.0
_HANGING_S = 0.5


class LocalEpisode:
    """The sandbox of one episode: a directory, and a fake client whose outcomes come from running things there.

    Attributes:
        client: To be given to the code under test.
        directory: The working directory.
    """

    def __init__(self, directory: Path, staged: Path) -> None:
        self.client = FakeClient()
        self.directory = directory
        self._staged = staged
        self.client.on_env_reset(self._reset)
        self.client.on_env_step(self._step)
        self.client.on_reward_tests(self._reward)
        self.client.on_generate(_generate)
        self.client.on_reward_model(_score)

    def _reset(self, action: EnvReset) -> Outcome[EnvResetResult]:
        self._write(action.files)
        set_up = self._run(action.set_up) if action.set_up is not None else None
        if set_up is not None and set_up.exit_code:
            return Failed(FailureKind.ENV, Reason.SET_UP_FAILED, set_up.stderr.decode())
        return Succeeded(EnvResetResult("local", set_up))

    def _step(self, action: EnvStep) -> Outcome[CommandResult]:
        self._write(action.files)
        try:
            return Succeeded(self._run(action.command))
        except FileNotFoundError as error:
            return Failed(FailureKind.ENV, Reason.NO_SUCH_PROGRAM, str(error))
        except subprocess.TimeoutExpired:
            return Failed(FailureKind.TIMEOUT, Reason.START_TO_CLOSE, "it ran out of time")

    def _reward(self, action: RewardTests) -> Outcome[RewardResult]:
        self._write(action.files)
        report = self.directory / "report.xml"
        result = self._run(action.command, {"{report}": str(report), "{units}": "1"})
        if not any("{report}" in argument for argument in action.command.program):
            return Succeeded(RewardResult(float(result.exit_code == 0), command=result))
        suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
        total = sum(int(suite.attrib["tests"]) - int(suite.attrib["skipped"]) for suite in suites)
        bad = sum(int(suite.attrib["failures"]) + int(suite.attrib["errors"]) for suite in suites)
        return Succeeded(RewardResult((total - bad) / total, total - bad, total, result))

    def _write(self, files: Iterable[SandboxFile]) -> None:
        for file in files:
            place = self.directory / file.path
            if file.unpack:
                with tarfile.open(fileobj=io.BytesIO(file.content)) as archive:
                    # Early releases of Python 3.11, Debian's among them, know no filters yet.
                    safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                    archive.extractall(place, **safely)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(file.content)

    def _run(self, command: Command, placeholders: dict[str, str] | None = None) -> CommandResult:
        arguments = ["sh", "-c", command.program] if isinstance(command.program, str) else list(command.program)
        for placeholder, value in (placeholders or {}).items():
            arguments = [argument.replace(placeholder, value) for argument in arguments]
        paths = [command.environment.get("PYTHONPATH", ""), str(self._staged)]
        environment = {**command.environment, "PYTHONPATH": ":".join(filter(None, paths)), "PATH": _PATH}
        done = subprocess.run(
            arguments,
            cwd=self.directory / command.working_directory,
            env={**environment, "HOME": os.devnull, "LANG": "C.UTF-8"},
            input=command.stdin,
            capture_output=True,
            check=False,
            timeout=_HANGING_S if arguments[0] == "tail" else _TIMEOUT_S,
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)


def _generate(action: Generate) -> Outcome[GenerateResult]:
    return Succeeded(GenerateResult(tuple(byte % 128 for byte in range(action.sampling.max_new_tokens))))


def _score(action: RewardModel) -> Outcome[RewardResult]:
    return Succeeded(RewardResult(len(action.token_ids) / 1000))
