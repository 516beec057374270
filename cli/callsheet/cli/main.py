"""Entry point of the `callsheet` command."""

from __future__ import annotations

import atexit
import gc
import os

# Before anything imports gRPC: children that this process forks would die in the handlers of its fork support.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# gRPC's own lines on standard error repeat what strangers said in a handshake as it is, orders to a terminal included.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def main() -> None:
    """Runs the command named on the command line; exits with 0, 1 (failure), 2 (usage) or 130 (a signal ended it)."""
    try:
        from callsheet.cli.app import app
        from callsheet.deploy.signals import interrupt_on_terminate
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        raise SystemExit(
            f"callsheet: module {error.name} is not installed; "
            "in a checkout of Callsheet, pip install '.[cli]' brings it"
        ) from None
    # Otherwise Python looks through all objects for garbage as it ends: 0.2 s of a scheduler's process.
    atexit.register(gc.freeze)
    interrupt_on_terminate()
    app()


if __name__ == "__main__":
    main()
