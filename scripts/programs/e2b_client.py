"""E2B's own client uses the facade, step by step; run by scripts/others.py in the client's environment.

    E2B_API_URL=... E2B_SANDBOX_URL=... E2B_API_KEY=... python -m scripts.programs.e2b_client

Each step prints its seconds, and how it differs from what is expected. The exit code is 1 if one differs.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from scripts.programs.steps import expect, raised, run_steps

e2b: Any = importlib.import_module("e2b")

SANDBOXES = 20
LIFE_S = 300
LARGE = bytes(range(256)) * 80_000  # 20 MB: more than one step of the facade reads


def commands(sandbox: Any) -> None:
    """Commands in the foreground: output, exit codes, variables, directories."""
    run = sandbox.commands.run
    done = run("echo out; echo err >&2; echo $OWN $MORE", envs={"MORE": "it's"})
    expect("stdout", done.stdout, "out\nof all it's\n")
    expect("stderr", done.stderr, "err\n")
    expect("exit code", done.exit_code, 0)
    failed = raised("CommandExitException", lambda: run("echo so far; exit 7"))
    expect("failed", (failed.exit_code, failed.stdout), (7, "so far\n"))
    expect("cwd", run("pwd", cwd="/tmp").stdout, "/tmp\n")
    raised("InvalidArgumentException", lambda: run("true", cwd="/nowhere"), "/nowhere")
    raised("InvalidArgumentException", lambda: run("true", user="nobody-here"), "nobody-here")
    expect("12 MB", len(run("head -c 12000000 /dev/zero | tr '\\0' x").stdout), 12_000_000)
    expect("text", run("printf 'h\\303\\244'; sleep 0.2; printf 'l\\303\\266'").stdout, "hälö")


def streaming(sandbox: Any) -> None:
    """Output comes while a command runs."""
    came: list[tuple[str, float]] = []
    sandbox.commands.run(
        "for n in 1 2 3; do echo $n; sleep 1; done; echo err >&2",
        on_stdout=lambda text: came.append((text, time.monotonic())),
        on_stderr=lambda text: came.append((text, time.monotonic())),
    )
    ended = time.monotonic()
    expect("parts", [text for text, _ in came], ["1\n", "2\n", "3\n", "err\n"])
    expect("the first came before the end", came[0][1] < ended - 2, True)


def timeouts(sandbox: Any) -> None:
    """A command that runs for too long is killed, and another goes on."""
    raised("TimeoutException", lambda: sandbox.commands.run("echo $$ > pid; sleep 1000", timeout=2))
    gone = "for n in 1 2 3 4 5 6 7 8 9; do kill -0 $(cat pid) 2>/dev/null || exit 0; sleep 1; done; exit 1"
    expect("killed", sandbox.commands.run(gone).exit_code, 0)
    # A client that reads slowly leaves so much unread that its command ends for that.
    raised("TimeoutException|RateLimitException", lambda: sandbox.commands.run("yes", timeout=2))
    expect("after a flood", sandbox.commands.run("echo ok").stdout, "ok\n")


def background(sandbox: Any) -> None:
    """Commands in the background: beside others, killed, connected to, written to."""
    commands = sandbox.commands
    server = commands.run("echo begun; n=0; while :; do n=$((n+1)); echo $n > ticks; sleep 0.1; done", background=True)
    first = commands.run("sleep 0.5; cat ticks").stdout
    expect("it goes on", int(commands.run("sleep 0.5; cat ticks").stdout) > int(first), True)
    expect("listed", [process.pid for process in commands.list()], [server.pid])
    expect("its own id", commands.run(f"kill -0 {server.pid}").exit_code, 0)
    expect("killed", server.kill(), True)
    failed = raised("CommandExitException", server.wait)
    expect("what it printed", (failed.stdout, failed.exit_code), ("begun\n", -1))
    expect("killed again", server.kill(), False)
    counting = commands.run("for n in 1 2 3 4 5 6 7 8; do echo $n; sleep 0.3; done", background=True)
    counting.disconnect()
    seen = commands.connect(counting.pid).wait().stdout
    expect("connected", seen.endswith("7\n8\n"), True)
    raised("NotFoundException", lambda: commands.connect(99_999))


def stdin(sandbox: Any) -> None:
    """Input of commands."""
    reading = sandbox.commands.run("while read -r line; do echo got $line; done; echo end", background=True, stdin=True)
    sandbox.commands.send_stdin(reading.pid, "one\ntwo\n")
    if hasattr(sandbox.commands, "close_stdin"):
        sandbox.commands.close_stdin(reading.pid)
        expect("stdout", reading.wait().stdout, "got one\ngot two\nend\n")
    else:
        reading.kill()


def files(sandbox: Any) -> None:
    """Files: text, bytes, many, large; directories, names, links."""
    files = sandbox.files
    expect("path", files.write("a/b.txt", "hällo").path.endswith("/a/b.txt"), True)
    expect("text", files.read("a/b.txt"), "hällo")
    files.write("bytes", b"\0\xff")
    expect("bytes", bytes(files.read("bytes", format="bytes")), b"\0\xff")
    files.write("large", io.BytesIO(LARGE))
    expect("large", bytes(files.read("large", format="bytes")) == LARGE, True)
    expect("streamed", b"".join(files.read("large", format="stream")) == LARGE, True)
    files.write_files([{"path": f"many/{n}", "data": str(n)} for n in range(5)])
    expect("many", sorted(entry.name for entry in files.list("many")), ["0", "1", "2", "3", "4"])
    expect("deep", [entry.name for entry in files.list("a", depth=2)], ["b.txt"])
    expect("made", (files.make_dir("d/e"), files.make_dir("d/e")), (True, False))
    expect("renamed", files.rename("a/b.txt", "d/c.txt").name, "c.txt")
    expect("exists", (files.exists("a/b.txt"), files.exists("d/c.txt"), files.exists("d")), (False, True, True))
    sandbox.commands.run("ln -s d/c.txt link; chmod 640 d/c.txt")
    expect("link", files.get_info("link").symlink_target.endswith("/d/c.txt"), True)
    found = files.get_info("d/c.txt")
    expect("info", (found.size, found.mode, found.permissions), (6, 0o640, "-rw-r-----"))
    files.remove("d")
    expect("removed", files.exists("d/c.txt"), False)
    missing = "FileNotFoundException" if hasattr(e2b, "FileNotFoundException") else "NotFoundException"
    raised(missing, lambda: files.read("d/c.txt"))
    raised(missing, lambda: files.list("d"))


def sandboxes(sandbox: Any) -> None:
    """Finding, connecting to and ending sandboxes."""
    other = e2b.Sandbox.create(timeout=LIFE_S, metadata={"run": "a b/c=d", "step": "1"})
    listed = e2b.Sandbox.list(query=e2b.SandboxQuery(metadata={"run": "a b/c=d"})).next_items()
    expect("listed", [found.sandbox_id for found in listed], [other.sandbox_id])
    pages = e2b.Sandbox.list(limit=1)
    ids = {found.sandbox_id for _ in range(2) for found in pages.next_items()}
    expect("pages", {other.sandbox_id, sandbox.sandbox_id} <= ids, True)
    expect("metadata", other.get_info().metadata, {"run": "a b/c=d", "step": "1"})
    other.files.write("kept", "x")
    again = e2b.Sandbox.connect(other.sandbox_id)
    expect("connected", again.files.read("kept"), "x")
    expect("running", again.is_running(), True)
    running = again.commands.run("sleep 1000", background=True)
    expect("killed", (other.kill(), other.kill()), (True, False))
    ended = "SandboxNotRunningException" if hasattr(e2b, "SandboxNotRunningException") else "TimeoutException"
    raised(ended, running.wait)
    expect("running", again.is_running(), False)
    raised(ended, lambda: again.commands.run("true"))
    raised(
        "SandboxNotFoundException" if hasattr(e2b, "SandboxNotFoundException") else "NotFoundException", again.get_info
    )
    short = e2b.Sandbox.create(timeout=LIFE_S)
    short.set_timeout(1)
    deadline = time.monotonic() + 30
    while short.is_running() and time.monotonic() < deadline:
        time.sleep(0.2)
    expect("its time is over", short.is_running(), False)


def pausing(sandbox: Any) -> None:
    """A paused sandbox stands still with what runs in it, and goes on when a client connects."""
    del sandbox
    other = e2b.Sandbox.create(timeout=LIFE_S)
    running = other.commands.run("until [ -e go ]; do sleep 0.1; done; echo went", background=True)
    (other.pause if hasattr(other, "pause") else other.beta_pause)()
    expect("state", other.get_info().state.value, "paused")
    expect("running", other.is_running(), False)
    again = e2b.Sandbox.connect(other.sandbox_id, timeout=LIFE_S)
    again.files.write("go", "")
    expect("it went on", running.wait().stdout, "went\n")
    expect("killed", other.kill(), True)


def errors(sandbox: Any) -> None:
    """What is refused is refused by name."""
    raised("AuthenticationException", lambda: e2b.Sandbox.create(api_key="e2b_0000"))
    raised("SandboxException", lambda: e2b.Sandbox.create(template="no-such-image"), "no-such-image")
    raised("SandboxException", lambda: e2b.Sandbox.create(timeout=10_000_000), "timeout")
    for name, call in {
        "CreateWatcher": lambda: sandbox.files.watch_dir("."),
        "pty": lambda: sandbox.pty.create(e2b.PtySize(24, 80)),
    }.items():
        raised("SandboxException", call, f"{name}: not supported")


async def one_of_many(number: int) -> None:
    """One rollout of many at a time."""
    sandbox = await e2b.AsyncSandbox.create(timeout=LIFE_S, envs={"NUMBER": str(number)})
    try:
        came: list[str] = []
        done = await sandbox.commands.run("echo $NUMBER; sleep 0.5; echo end", on_stdout=came.append)
        expect("stdout", (done.stdout, "".join(came)), (f"{number}\nend\n",) * 2)
        await sandbox.files.write("mine", str(number))
        ran = await asyncio.gather(*(sandbox.commands.run(f"echo {n} $(cat mine)") for n in range(3)))
        expect("beside each other", [each.stdout for each in ran], [f"{n} {number}\n" for n in range(3)])
        running = await sandbox.commands.run("sleep 1000", background=True)
        expect("killed", await running.kill(), True)
        expect("read", await sandbox.files.read("mine"), str(number))
    finally:
        await sandbox.kill()


def many(sandbox: Any) -> None:
    """Many sandboxes at once, by the asynchronous client."""
    del sandbox

    async def all_of_them() -> None:
        await asyncio.gather(*(one_of_many(number) for number in range(SANDBOXES)))

    asyncio.run(all_of_them())


STEPS: tuple[Callable[[Any], None], ...] = (
    commands,
    streaming,
    timeouts,
    background,
    stdin,
    files,
    sandboxes,
    pausing,
    errors,
    many,
)


def main() -> int:
    """Runs all steps in one sandbox; returns 1 if one differs."""
    sandbox = e2b.Sandbox.create(timeout=LIFE_S, envs={"OWN": "of all"})
    differs = run_steps({step.__name__: partial(step, sandbox) for step in STEPS})
    sandbox.kill()
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
