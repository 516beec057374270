"""Commands of `callsheet` in the process of the test."""

from __future__ import annotations

from callsheet.cli.app import app
from typer.testing import CliRunner, Result

from tests.support.grpc_loops import runs_in_an_open_loop


def invoke(*arguments: str, **environment: str) -> Result:
    """Runs a command."""
    with runs_in_an_open_loop():
        return CliRunner().invoke(app, list(arguments), env=environment)
