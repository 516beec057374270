"""Images of Dockerfiles, built by a real buildah on an image of a real registry, once a node."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from callsheet.managers.executor import AttemptResult, Broken, Stopped
from callsheet.managers.sandbox.build_settings import BuildSettings, BuildsFor
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.network.destinations import Destination
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.managers.sandbox.registry_settings import RegistrySettings
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.v1 import action_pb2, outcome_pb2

from tests.support.binaries import require_program
from tests.support.executor_runs import completed, make, running_executor
from tests.support.oci_images import Layout, Registry, archive_of, archive_of_tree, file, running_registry
from tests.support.other_user import TESTS_TIMEOUT_S, run_tests_as_other_user
from tests.support.root_filesystems import copy_program, make_apt_root, make_root, require_overlays
from tests.support.sandbox_attempts import attempt_of, reset, step
from tests.support.sandboxes import Variant, settings_for

_DOCKERFILE = """\
ARG REGISTRY
FROM $REGISTRY/tiny:v1
WORKDIR /app
COPY . /app/
RUN id -u >user && chown 33:33 given && rm Dockerfile && ls /app >listing
ENV GREETING="from the Dockerfile"
RUN sh -c 'for _ in 1 2 3; do head -c 16 /dev/urandom; done >drawn'
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with a small image."""
    require_overlays()
    require_program("buildah")
    directory = tmp_path_factory.mktemp("registry")
    with running_registry(directory) as running:
        tiny = Layout(directory / "layout")
        tiny.add(archive_of_tree(make_root(directory / "tiny", (*_PROGRAMS,))))
        tiny.finish(tiny.image({"Env": ["PATH=/bin"]}))
        for name in ("tiny:v1", "debian:bookworm-slim", "ubuntu:22.04"):
            running.push(tiny.directory, name)
        root = make_root(directory / "team", (*_PROGRAMS,))
        (root / "of-the-team").touch()
        team = Layout(directory / "team-layout")
        team.add(archive_of_tree(root))
        team.finish(team.image({"Env": ["PATH=/bin"]}))
        running.push(team.directory, "team/ubuntu:22.04")
        hostile = Layout(directory / "hostile-layout")
        hostile.add(archive_of_tree(make_root_with_python(directory / "hostile")))
        hostile.finish(hostile.image({"Env": ["PATH=/bin"]}))
        running.push(hostile.directory, "hostile:v1")
        if shutil.which("apt-get") and shutil.which("dpkg-deb"):
            with_apt = Layout(directory / "with-apt")
            with_apt.add(archive_of_tree(make_apt_root(directory / "apt")))
            with_apt.finish(with_apt.image({"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}))
            running.push(with_apt.directory, "with-apt:v1")
        yield running


def make_root_with_python(root: Path) -> Path:
    """A root with as much of a Python as a program needs that calls the system."""
    make_root(root, (*_PROGRAMS, "mount", "mknod", "unshare", "nsenter"))
    program = Path("/usr/bin/python3").resolve()
    copy_program(program, root, Path("bin"))
    (root / "bin" / program.name).rename(root / "bin" / "python")
    encodings = Path("/usr/lib", program.name, "encodings")
    shutil.copytree(encodings, root / str(encodings).lstrip("/"), ignore=shutil.ignore_patterns("__pycache__"))
    return root


# Leaves a step's root as root may that has CAP_SYS_CHROOT, and writes into every directory that it finds then.
_ESCAPE = """
import posix
posix.mkdir("/inner")
outside = posix.open("/", 0)
posix.chroot("/inner")
posix.fchdir(outside)
for _ in range(64):
    posix.chdir("..")
posix.chroot(".")
def write(place, depth):
    for name in posix.listdir(place):
        try:
            write(f"{place}/{name}", depth - 1) if depth else None
            posix.close(posix.open(f"{place}/{name}/planted", posix.O_CREAT | posix.O_WRONLY))
        except OSError:
            pass
write("/mnt", 6)
"""
_PROGRAMS = ("sh", "cat", "ls", "rm", "id", "chown", "head", "sleep", "grep")


@pytest.fixture
def settings(registry: Registry, tmp_path: Path) -> SandboxSettings:
    return replace(
        settings_for(Variant(Isolation.BUBBLEWRAP, groups=True), tmp_path),
        provisioning=ProvisioningSettings(
            registry=RegistrySettings(registries=(registry.address,)), builds=BuildSettings(build_images=True)
        ),
    )


def built(registry: Registry, dockerfile: str = _DOCKERFILE, trajectory: str = "t") -> action_pb2.ActionSpec:
    action = reset(trajectory=trajectory)
    build = action.env_reset.build
    files = [file("given", b"given\n"), file("Dockerfile", dockerfile.encode())]
    files += [file("escape.py", _ESCAPE.encode())] if "escape.py" in dockerfile else []
    build.context.inline = archive_of(files)
    build.arguments["REGISTRY"] = registry.address
    return action


async def said(executor: SandboxExecutor, sandbox_id: str, script: str, trajectory: str = "t") -> str:
    result = await completed(executor, step(script, trajectory=trajectory), sandbox_id=sandbox_id)
    return result.env_step.stdout.inline.decode(errors="replace")


def failure(result: AttemptResult) -> tuple[str, str, str]:
    assert isinstance(result, Broken), result
    failed = result.failed
    return outcome_pb2.FailureKind.Name(failed.kind).removeprefix("FAILURE_KIND_"), failed.reason, failed.message


async def test_a_dockerfile_is_built_once_for_all_who_ask(settings: SandboxSettings, registry: Registry) -> None:
    drawn = []
    async with running_executor(settings) as executor:
        ids: dict[str, str] = {}

        async def one(name: str) -> None:
            ids[name] = await make(executor, built(registry, trajectory=name))

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(one, str(number))
        script = "pwd; cat user listing; echo $GREETING"
        assert await said(executor, ids["0"], script, "0") == "/app\n0\ngiven\nlisting\nuser\nfrom the Dockerfile\n"
        drawn += [await said(executor, ids[name], "cat drawn", name) for name in ids]
    assert not list(((settings.data_directory / "builds" / settings.manager_id / "work") / "builds").iterdir())
    # Another process of the manager knows the image.
    async with running_executor(settings) as executor:
        drawn.append(await said(executor, await make(executor, built(registry)), "cat drawn"))
    assert len(set(drawn)) == 1


async def test_the_user_of_a_dockerfile_is_honoured(settings: SandboxSettings, registry: Registry) -> None:
    dockerfile = """\
ARG REGISTRY
FROM $REGISTRY/tiny:v1
RUN echo 'agent:x:1234:77::/srv/agent:/bin/sh' >>/etc/passwd
USER agent
"""
    async with running_executor(settings) as executor:
        sandbox_id = await make(executor, built(registry, dockerfile))
        assert await said(executor, sandbox_id, 'echo "$(id -u) $USER $HOME"') == "1234 agent /srv/agent\n"
        as_root = built(registry, dockerfile)
        as_root.env_reset.defaults.user = "root"
        assert await said(executor, await make(executor, as_root), 'echo "$(id -u) $USER $HOME"') == "0 root /root\n"
        nobody = built(registry, "ARG REGISTRY\nFROM $REGISTRY/tiny:v1\nUSER nobody\n")
        kind, reason, message = failure(await executor.run(attempt_of(nobody, resources={"memory": 256})))
        assert (kind, reason) == ("ENV", "user_refused")
        assert "'nobody'" in message


async def test_short_names_are_those_of_the_managers_registry(settings: SandboxSettings, registry: Registry) -> None:
    """Distributions bring files by which debian, ubuntu and python are in a registry of their own choice."""
    dockerfile = """\
FROM team/ubuntu:22.04 AS Team
RUN ls / >/seen
FROM ubuntu:22.04 AS first
COPY --from=team /seen /made
RUN ls / | cat /made - >/seen
FROM debian:bookworm-slim
COPY --from=FIRST /seen /made
"""
    async with running_executor(settings) as executor:
        sandbox_id = await make(executor, built(registry, dockerfile))
        # Its name ends as that of the one that was taken before.
        assert (await said(executor, sandbox_id, "cat /made")).count("of-the-team") == 1


async def test_apt_get_installs_in_builds_and_in_sandboxes(settings: SandboxSettings, registry: Registry) -> None:
    require_program("apt-get")
    require_program("dpkg-deb")
    install = "apt-get update && apt-get install -y greeting"
    shown = "cat /usr/share/greeting/*; ls /etc/apt/apt.conf.d"
    async with running_executor(settings) as executor:
        base = "ARG REGISTRY\nFROM $REGISTRY/with-apt:v1\n"
        prepared = await make(executor, built(registry, f"{base}RUN {install}\n"))
        assert await said(executor, prepared, shown) == "good morning\nconfigured\n"
        bare = await make(executor, built(registry, base, "u"))
        assert (
            await said(executor, bare, f"({install}) >/log 2>&1 || cat /log; {shown}", "u")
            == "good morning\nconfigured\n"
        )


async def test_what_does_not_build_is_refused_by_name(settings: SandboxSettings, registry: Registry) -> None:
    async with running_executor(settings) as executor:

        async def refused(dockerfile: str, seconds: int = 60) -> tuple[str, str, str]:
            action = built(registry, dockerfile)
            action.env_reset.build.timeout.FromSeconds(seconds)
            return failure(await executor.run(attempt_of(action, resources={"memory": 256})))

        begin = f"FROM {registry.address}/tiny:v1\n"
        kind, reason, message = await refused(f"{begin}RUN echo some words && false\n")
        assert (kind, reason) == ("ENV", "image_build_failed")
        assert "some words" in message
        kind, reason, message = await refused(f"{begin}RUN sleep 600\n", 2)
        assert (kind, reason) == ("ENV", "image_build_failed")
        assert "more than 2 s" in message
        kind, reason, message = await refused(f"FROM {registry.address}/other:v1\n")
        assert reason == "image_unavailable"
        assert "other" in message
        kind, reason, message = await refused("FROM docker.io/library/python:3.11\n")
        assert reason in {"image_unavailable", "image_build_failed"}, message


async def test_a_step_leaves_its_root_for_nothing(settings: SandboxSettings, registry: Registry) -> None:
    begin = f"FROM {registry.address}/hostile:v1\n"
    dockerfile = f"""{begin}COPY escape.py /
RUN python -I -S /escape.py; echo $? >/escaped
RUN for each in 'mount -t tmpfs x /tmp' 'mknod /disk b 8 0' 'unshare -U true' 'nsenter -t 1 -m true'; do \
    $each && echo "$each" >>/done; done; true
"""
    async with running_executor(settings) as executor:
        # What others build on it is what its registry has.
        await make(executor, built(registry, begin, "first"))
        hostile = await make(executor, built(registry, dockerfile, "hostile"))
        later = await make(executor, built(registry, f"{begin}RUN ls / /bin /etc | cat - >/seen\n", "later"))
        assert "planted" not in await said(executor, later, "cat /seen; ls / /bin", "later")
        assert await said(executor, hostile, "cat /escaped; ls /; cat /done", "hostile") != ""
        assert (await said(executor, hostile, "cat /escaped", "hostile")).strip() != "0"
        assert await said(executor, hostile, "cat /done", "hostile") == ""


async def test_a_base_that_was_changed_is_pulled_anew(settings: SandboxSettings, registry: Registry) -> None:
    async with running_executor(settings) as executor:
        await make(executor, built(registry, f"FROM {registry.address}/tiny:v1\n", "first"))
        work = settings.data_directory / "builds" / settings.manager_id / "work"
        names = [path for path in work.rglob("image-name") if path.parent.name == "etc"]
        assert names
        for path in names:
            before = path.stat()
            path.write_text("evil\n")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        second = built(registry, f"FROM {registry.address}/tiny:v1\nRUN cat /etc/image-name >/seen\n", "second")
        assert await said(executor, await make(executor, second), "cat /seen", "second") == "tiny\n"


async def test_a_build_sees_and_leaves_nothing_of_others(settings: SandboxSettings, registry: Registry) -> None:
    """A cache that RUN mounts, processes, the machine's files, and a process that goes on."""
    dockerfile = f"""FROM {registry.address}/hostile:v1
RUN --mount=type=cache,target=/cache ls /cache >/cached; echo word >/cache/left
RUN cat /proc/[0-9]*/cmdline >/processes
RUN grep -E '^(Cap|Seccomp:)' /proc/self/status >/rights
RUN grep processes /proc/self/limits >/limits
RUN sleep 612 >/dev/null 2>&1 & echo begun
"""
    async with running_executor(settings) as executor:
        await make(executor, built(registry, dockerfile, "one"))
        sandbox_id = await make(executor, built(registry, f"{dockerfile}RUN true\n", "two"))
        assert await said(executor, sandbox_id, "cat /cached", "two") == ""
        assert "pytest" not in await said(executor, sandbox_id, "cat /processes", "two")
        rights = dict(
            line.split(":\t") for line in (await said(executor, sandbox_id, "cat /rights", "two")).splitlines()
        )
        chroot, admin, ptrace, mknod, read_search = (1 << number for number in (18, 21, 19, 27, 2))
        assert not int(rights["CapBnd"], 16) & (chroot | admin | ptrace | mknod | read_search)
        assert rights["Seccomp"] == "2"
        assert (await said(executor, sandbox_id, "cat /limits", "two")).split()[2:4] == ["4096", "4096"]
        assert not sleeping("612")


@pytest.mark.parametrize("value", ['it\'s "$HOME" `x` \\\\ \\', "", "two  words ", "a=b", "'", "# none"])
async def test_arguments_are_taken_as_they_are(settings: SandboxSettings, registry: Registry, value: str) -> None:
    dockerfile = """\
ARG REGISTRY
ARG WORD=default OTHER="the other"
FROM $REGISTRY/tiny:v1
ARG WORD
ARG OTHER
ENV WORD=$WORD-kept
RUN printf '%s|%s|' "$HTTP_PROXY" "$OTHER" >/seen
FROM $REGISTRY/tiny:v1
ARG WORD="another default"
ARG ABSENT=${WORD}
COPY --from=0 /seen /
RUN printf '%s|%s' "$WORD" "$ABSENT" >>/seen
"""
    action = built(registry, dockerfile)
    action.env_reset.build.arguments.update({"WORD": value, "HTTP_PROXY": "http://of-the-build:1"})
    async with running_executor(settings) as executor:
        expected = f"http://of-the-build:1|the other|{value}|{value}"
        assert await said(executor, await make(executor, action), "cat /seen") == expected


async def test_arguments_stand_on_no_command_line(settings: SandboxSettings, registry: Registry) -> None:
    secret, lines = "a-word-that-nobody-else-has", set[bytes]()
    dockerfile = f"FROM {registry.address}/tiny:v1\nARG SECRET\nRUN sleep 1 && false\n"
    action = built(registry, dockerfile)
    action.env_reset.build.arguments["SECRET"] = secret
    results: list[AttemptResult] = []
    async with running_executor(settings) as executor, anyio.create_task_group() as tasks:

        async def run() -> None:
            results.append(await executor.run(attempt_of(action, resources={"memory": 256})))
            tasks.cancel_scope.cancel()

        tasks.start_soon(run)
        while True:
            lines |= set(command_lines())
            await anyio.lowlevel.checkpoint()
    assert any(b"build" in line for line in lines)
    assert not [line for line in lines if secret.encode() in line]
    assert secret not in failure(results[0])[2]


async def test_builds_of_jobs_have_a_network_of_their_own(settings: SandboxSettings, registry: Registry) -> None:
    host, port = registry.address.split(":")
    connect = f"import _socket; _socket.socket(2, 1).connect(('{host}', {port}))"
    dockerfile = f"""FROM {registry.address}/hostile:v1
RUN cat /proc/net/dev >/devices; echo $https_proxy >/proxy
RUN python -I -S -c "{connect}" 2>/dev/null; echo $? >/reached
RUN python -I -S -c "import _socket; s = _socket.socket(2, 1); s.connect(('127.0.0.1', 3128)); \
    s.send(b'CONNECT {registry.address} HTTP/1.1\\r\\n\\r\\n'); print(s.recv(99))" >/answer
"""
    provisioning = replace(settings.provisioning, builds=BuildSettings(build_images=True, builds_for=BuildsFor.JOBS))
    network = (Destination.parse(registry.address), Destination.parse("example.org:443"))
    async with running_executor(replace(settings, provisioning=provisioning, network=network)) as executor:
        sandbox_id = await make(executor, built(registry, dockerfile))
        devices = (await said(executor, sandbox_id, "cat /devices")).splitlines()[2:]
        assert [line.split(":")[0].strip() for line in devices] == ["lo"]
        assert await said(executor, sandbox_id, "cat /proxy") == "http://127.0.0.1:3128\n"
        assert (await said(executor, sandbox_id, "cat /reached")).strip() != "0"
        assert "403" in await said(executor, sandbox_id, "cat /answer")


async def test_a_build_that_is_stopped_leaves_nobody_who_builds(settings: SandboxSettings, registry: Registry) -> None:
    results: list[AttemptResult] = []
    attempt = attempt_of(
        built(registry, f"FROM {registry.address}/tiny:v1\nRUN sleep 611\n"), resources={"memory": 256}
    )
    async with running_executor(settings) as executor:

        async def reset_it() -> None:
            results.append(await executor.run(attempt))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reset_it)
            with anyio.fail_after(60):
                while not sleeping("611"):
                    await anyio.lowlevel.checkpoint()
            attempt.stop_requested.set()
    assert isinstance(results[0], Stopped)
    assert not sleeping("611")


def sleeping(seconds: str) -> bool:
    """Whether a process sleeps for so long."""
    return f"sleep\0{seconds}\0".encode() in command_lines()


def command_lines() -> Iterator[bytes]:
    """Those of all processes, as any user of the machine may read them."""
    for place in Path("/proc").iterdir():
        with suppress(OSError):
            if place.name.isdecimal():
                yield (place / "cmdline").read_bytes()


if os.geteuid() == 0:

    @pytest.mark.nightly
    @pytest.mark.timeout(TESTS_TIMEOUT_S + 20)
    def test_an_unprivileged_user_builds_as_well() -> None:
        chosen = "test_a_dockerfile_is_built or test_a_step_leaves or test_a_build_sees or network_of_their_own"
        run_tests_as_other_user(chosen, "tests/integration/test_image_builds.py")
