"""Makes `.venv` and installs Callsheet into it, editable, with everything for work on it.

    python3 scripts/set_up.py

An importable torch is kept, whatever its version. Otherwise the environment variable TORCH_INDEX names the package
index to take torch from, for instance one with CPU-only builds; without it torch comes, in the version of
requirements.lock, from wherever pip is set up to look.
"""

# Syntax that Python 3.8 reads, so that an old interpreter is told what is wrong.
from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements.lock"
OLDEST_PYTHON = (3, 11)
TORCH_FACTS = """
import importlib.metadata, torch
print(torch.__version__, *(importlib.metadata.requires("torch") or []), sep="\\n")
"""


def say(text: str) -> None:
    """Prints a line about what is going on, at once."""
    print(f"set_up: {text}", flush=True)


def has_pip() -> bool:
    """Whether `.venv` is there and complete."""
    command = [str(PYTHON), "-m", "pip", "--version"]
    return PYTHON.exists() and subprocess.run(command, check=False, capture_output=True).returncode == 0


def create_environment() -> None:
    """Creates `.venv`, or completes one without pip (an earlier try was interrupted).

    Raises:
        SystemExit: Python is too old or comes without venv.
    """
    if has_pip():
        return
    if sys.version_info < OLDEST_PYTHON:
        found = ".".join(map(str, sys.version_info[:3]))
        raise SystemExit(
            f"set_up: {sys.executable} is Python {found}; Callsheet needs 3.11 or later (PYTHON=... names one)"
        )
    try:
        __import__("ensurepip")
    except ImportError:
        raise SystemExit(f"set_up: {sys.executable} has no venv; on Debian and Ubuntu install python3-venv") from None
    say(f"creating {VENV.name}")
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)


def pip_install(*arguments: str) -> None:
    """Runs pip in `.venv`."""
    subprocess.run([str(PYTHON), "-m", "pip", "install", "--no-input", *arguments], check=True, cwd=str(ROOT))


def torch_facts() -> list[str]:
    """Returns the version of the torch in `.venv`, then its requirements; nothing if it cannot be imported."""
    result = subprocess.run([str(PYTHON), "-c", TORCH_FACTS], check=False, capture_output=True, text=True)
    return result.stdout.split("\n") if result.returncode == 0 else []


def ensure_torch(locked: str) -> None:
    """Installs torch (version `locked`, or the newest of TORCH_INDEX), unless one is there."""
    if facts := torch_facts():
        say(f"keeping torch {facts[0]}")
    elif index := os.environ.get("TORCH_INDEX"):
        say("installing torch from TORCH_INDEX")
        pip_install("torch", "--index-url", index)
    else:
        say(f"installing torch {locked}")
        pip_install(f"torch=={locked}")


def name_of(requirement: str) -> str:
    """Returns the normalised package name that a requirement begins with."""
    return re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0].lower().replace("_", "-")


def constraints(lock: str, torch: list[str]) -> str:
    """Returns the lock, fitted to the installed torch.

    Args:
        lock: Content of requirements.lock.
        torch: What `torch_facts` returned. A torch of another version than the lock's may need other versions of what
            it requires, so those lines go.
    """
    version = torch[0]
    lines = lock.splitlines()
    if f"torch=={version.partition('+')[0]}" in lines:
        return lock
    freed = {"torch", *(name_of(requirement) for requirement in torch[1:] if requirement)}
    return "\n".join([line for line in lines if name_of(line) not in freed] + [f"torch=={version}\n"])


def main() -> None:
    """Runs the steps in order."""
    create_environment()
    lock = LOCK.read_text()
    ensure_torch(next(line.partition("==")[2] for line in lock.splitlines() if line.startswith("torch==")))
    say("installing Callsheet and its dependencies")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "constraints.txt"
        path.write_text(constraints(lock, torch_facts()))
        pip_install("-c", str(path), "-e", ".[dev]")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"set_up: this command failed with exit status {error.returncode}: {' '.join(error.cmd)}")
