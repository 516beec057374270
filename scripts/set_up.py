"""Makes `.venv` and installs Callsheet into it, editable.

    python3 scripts/set_up.py          with everything for work on it
    python3 scripts/set_up.py local    with this extra alone: the demo needs no more

uv installs, from wherever pip is set up to look; where there is no uv to be had, pip does. An importable torch is kept,
whatever its version. Otherwise the environment variable TORCH_INDEX names the package index to take torch from, for
instance one with CPU-only builds; without it torch comes in the version of requirements.lock.
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
UV = VENV / "bin" / "uv"
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


def pip_settings() -> dict[str, str]:
    """Returns pip's settings, of its files and of the environment, which goes before the files."""
    command = [str(PYTHON), "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=False, capture_output=True, text=True).stdout.splitlines()
    pairs = [line.partition("=") for line in sorted(listed, key=lambda line: line.startswith(":env:"))]
    return {key.rpartition(".")[2]: value.strip("'\"") for key, _, value in pairs}


def uv_arguments(settings: dict[str, str]) -> list[str]:
    """Returns pip's settings as uv takes them, which reads none of pip's."""
    flags = {
        "index-url": "--default-index",
        "extra-index-url": "--index",
        "find-links": "--find-links",
        "constraint": "--constraint",
        "trusted-host": "--allow-insecure-host",
    }
    arguments = ["--no-index"] if settings.get("no-index", "").lower() in {"1", "true", "yes", "on"} else []
    for name, flag in flags.items():
        arguments += [each for value in settings.get(name, "").split() for each in (flag, value)]
    # As pip does: the best version of all indexes.
    return [*arguments, "--index-strategy", "unsafe-best-match"]


def has_uv() -> bool:
    """Whether `.venv` has uv, which is installed if it can be had."""
    if not UV.exists():
        command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--no-input", "uv"]
        subprocess.run(command, check=False, cwd=str(ROOT))
    return UV.exists()


def install(*arguments: str, into: Path = PYTHON) -> None:
    """Installs for an interpreter, that of `.venv` by default; an index in `arguments` goes before pip's settings."""
    command = [str(into), "-m", "pip", "install", "--no-input"]
    environment = dict(os.environ)
    if has_uv():
        settings = pip_settings()
        if "--index-url" in arguments:
            settings = {name: value for name, value in settings.items() if name in {"constraint", "trusted-host"}}
        if "cert" in settings:
            environment["SSL_CERT_FILE"] = settings["cert"]
        command = [str(UV), "pip", "install", "--python", str(into), *uv_arguments(settings)]
    subprocess.run([*command, *arguments], check=True, cwd=str(ROOT), env=environment)


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
        install("torch", "--index-url", index)
    else:
        say(f"installing torch {locked}")
        install(f"torch=={locked}")


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


def main(extra: str = "dev") -> None:
    """Runs the steps in order."""
    create_environment()
    lock = LOCK.read_text()
    ensure_torch(next(line.partition("==")[2] for line in lock.splitlines() if line.startswith("torch==")))
    say("installing Callsheet and its dependencies")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "constraints.txt"
        path.write_text(constraints(lock, torch_facts()))
        install("-c", str(path), "-e", f".[{extra}]")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:2])
    except subprocess.CalledProcessError as error:
        sys.exit(f"set_up: this command failed with exit status {error.returncode}: {' '.join(error.cmd)}")
