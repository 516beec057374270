"""Entry point of the `callsheet` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command named on the command line; exits with 0, 1 (failure) or 2 (usage)."""
    try:
        from callsheet.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        sys.stderr.write(f"callsheet: module {error.name} is not installed; pip install 'callsheet[cli]' brings it\n")
        raise SystemExit(1) from None
    app()


if __name__ == "__main__":
    main()
