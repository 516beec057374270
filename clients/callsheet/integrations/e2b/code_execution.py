"""Executing Python code in one sandbox, by the program `code_kernel.py` that is copied into it."""

from __future__ import annotations

import importlib.resources
import json
import secrets

from callsheet.integrations.e2b.errors import unsupported
from callsheet.integrations.e2b.filesystem import Filesystem
from callsheet.integrations.e2b.messages import ExecuteCode, ProcessConfig, StartProcess

_PLACE = "/tmp/.callsheet-e2b/code"
_PROGRAM = f"{_PLACE}/code_kernel.py"
_DEFAULT_CONTEXT = "default"


class CodeInterpreter:
    """Makes executions of code into processes of the sandbox."""

    def __init__(self, files: Filesystem) -> None:
        """Args: files: Of the sandbox."""
        self._files = files
        self._copied = False

    async def process(self, asked: ExecuteCode) -> StartProcess:
        """Returns the process that executes code, and prints what comes of it.

        Raises:
            E2bError: It is not Python's, or its context is another one than that of the sandbox.
        """
        if asked.language not in {None, "python"}:
            raise unsupported(f"run_code in {asked.language}")
        if asked.context_id not in {None, _DEFAULT_CONTEXT}:
            raise unsupported("contexts of code")
        if not self._copied:
            await self._files.write(_PROGRAM, _source())
            self._copied = True
        request = f"{_PLACE}/{secrets.token_hex(6)}.json"
        content = {"code": asked.code, "env_vars": asked.env_vars or {}}
        await self._files.write(request, json.dumps(content).encode())
        program = ProcessConfig(cmd="python3", args=[_PROGRAM, _PLACE, request])
        return StartProcess(process=program, stdin=False)


def _source() -> bytes:
    return importlib.resources.files(__package__ or "").joinpath("code_kernel.py").read_bytes()
