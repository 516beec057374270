"""Task folders: what is read of them, and what they need that sandboxes do not have."""

from __future__ import annotations

import codecs
import os
import shutil
import socket
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from callsheet.environments import TaskSetError, load_task_set
from callsheet.environments.harbor import HarborTaskError, HarborTasks, oracle
from callsheet.environments.harbor.environment import HarborAgent, HarborEnvironment
from callsheet.environments.harbor.folders import archive_of, find_tasks, read_task
from callsheet.environments.harbor.task import TaskFormat
from callsheet.environments.harbor.task_set import network_of

from tests.support.other_user import run_tests_as_other_user

EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "harbor"
MakeTask = Callable[..., Path]


def test_the_defaults_are_those_of_the_format(make_task: MakeTask) -> None:
    task = read_task(make_task(""))
    assert (task.cpus, task.memory_mib, task.storage_mib) == (1, 2048, 10240)
    assert (task.build_timeout_s, task.verifier_timeout_s) == (600.0, 600.0)
    assert (task.internet, task.instruction) == (True, "Do it.\n")


def test_what_a_folder_says_is_read() -> None:
    task = read_task(EXAMPLES / "use-variables")
    assert (task.image, task.memory_mib, task.storage_mib) == ("debian:bookworm-slim", 256, 64)
    assert (task.agent_timeout_s, task.verifier_timeout_s, task.build_timeout_s) == (120.0, 60.0, 300.0)
    variables = (task.environment, task.verifier_environment)
    assert variables == ({"GREETING": "good morning"}, {"EXPECTED": "good morning"})
    former = read_task(EXAMPLES / "three-files")
    assert (former.memory_mib, former.storage_mib) == (256, 64)
    first = read_task(EXAMPLES / "rename-files")
    read = (first.format, first.agent_timeout_s, first.verifier_timeout_s)
    assert read == (TaskFormat.TERMINAL_BENCH, 120.0, 60.0)
    assert first.instruction.startswith("Rename each file")


@pytest.mark.parametrize(
    ("environment", "rest", "said"),
    [
        ("gpus = 1", "", "needs GPUs"),
        ("privileged = true", "", "needs a privileged container"),
        ('[[environment.mcp_servers]]\nname = "x"', "", "needs MCP servers"),
        ('[environment.healthcheck]\ncommand = "true"', "", "needs a health check"),
        ('os = "windows"', "", "must be linux"),
        ('memory = "much"', "", "must be a size such as 512M or 2G"),
        ("cpus = 0", "", "must be a whole number of at least 1"),
        ("cpus = -0.5", "", "must be a whole number of at least 1"),
        ("cpus = inf", "", "must be a whole number of at least 1"),
        ("", '[agent]\nuser = "agent"\n[verifier]\nuser = "root"', "needs another user than its agent, 'agent'"),
        ("", "[agent]\nuser = 1.5", "must be a text"),
        ("", "[agent]\ntimeout_sec = -1", "must be seconds above 0"),
        ("", '[verifier]\nenvironment_mode = "separate"', "needs a sandbox of its own for tests"),
        ('env = { KEY = "${NO_SUCH_VARIABLE}" }', "", "the variable NO_SUCH_VARIABLE must be set here"),
        ('network_mode = "some"', "", "must be public, no-network or allowlist"),
        ("= 1", "", "task.toml: "),
        (f"cpus = {'9' * 5000}", "", "4300 digits"),
        (f"x = {'[' * 5000}", "", "recursion"),
    ],
)
def test_what_sandboxes_do_not_have_is_refused_by_name(
    make_task: MakeTask, environment: str, rest: str, said: str
) -> None:
    folder = make_task(environment, rest)
    with pytest.raises(HarborTaskError, match="task 'task': ") as refused:
        read_task(folder, {})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("services: {main: {}, database: {}}", "needs several containers"),
        ("services: {main: {privileged: true}}", "needs a privileged container"),
        ("services: {main: {cap_add: [SYS_ADMIN]}}", "needs further capabilities"),
        ("services: {main: {network_mode: host}}", "needs the machine's network"),
        ("services: {main: {command: [nginx]}}", "needs a program that begins with the container"),
        ("services: [", "docker-compose.yaml: "),
        ("services: {main: {command: sleep infinity, build: .}}", ""),
    ],
)
def test_a_compose_file_may_have_one_service_that_waits(make_task: MakeTask, text: str, said: str) -> None:
    folder = make_task()
    (folder / "environment" / "docker-compose.yaml").write_text(text)
    if not said:
        assert read_task(folder).name == "task"
        return
    with pytest.raises(HarborTaskError, match="task 'task': docker-compose") as refused:
        read_task(folder)
    assert said in str(refused.value)


def test_a_task_takes_the_variables_that_its_user_names_and_never_our_own(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME_KEY", "INDEX_URL", "CALLSHEET_TOKEN"):
        monkeypatch.setenv(name, f"value of {name}")
    folder = make_task('allow_internet = false\nenv = { A = "${INDEX_URL}", B = "${HOME_KEY:-none}" }')
    tasks = HarborTasks(str(folder), variables="INDEX_URL, NOT_SET")
    named = tasks.tasks()[0]
    made = tasks.environment(named)
    assert isinstance(made, HarborEnvironment)
    assert made.task.environment == {"A": "value of INDEX_URL", "B": "none"}
    (folder / "solution" / "solve.sh").write_text("true\n")
    assert oracle(named)._task.environment == made.task.environment
    with pytest.raises(HarborTaskError, match=r"INDEX_URL must be set here, and named: --task-option variables=IND"):
        HarborTasks(str(folder))
    with pytest.raises(HarborTaskError, match=r"'CALLSHEET_TOKEN': must be none of CALLSHEET_\*"):
        HarborTasks(str(folder), variables="INDEX_URL,CALLSHEET_TOKEN")
    own = make_task('env = { A = "${CALLSHEET_TOKEN}" }', name="own")
    with pytest.raises(HarborTaskError, match="CALLSHEET_TOKEN must be set here"):
        read_task(own)


@pytest.mark.parametrize(
    "name",
    [
        *("instruction.md", "task.toml", "tests", "solution", "environment", "environment/Dockerfile"),
        *("tests/test.sh", "solution/solve.sh", "environment/docker-compose.yaml", "tests/compose.yml"),
    ],
)
def test_nothing_that_is_read_here_leads_out_of_the_task(make_task: MakeTask, tmp_path: Path, name: str) -> None:
    folder, secret = make_task(), make_task(name="secret")
    place = folder / name
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    # By a way that looks as if it stayed inside, too.
    (folder / "way").symlink_to(secret)
    for target in (secret / name, folder / "way" / name, Path("/etc/hostname")):
        place.symlink_to(target)
        with pytest.raises(HarborTaskError, match=f"task 'task': .*{name}.*(leads|a link) to '.*out of"):
            read_task(folder)
        place.unlink()


def test_links_inside_a_task_are_its_own(make_task: MakeTask) -> None:
    folder = make_task()
    (folder / "instruction.md").rename(folder / "text.md")
    (folder / "instruction.md").symlink_to("text.md")
    (folder / "environment" / "python").symlink_to("/usr/bin/python3")
    assert read_task(folder).instruction == "Do it.\n"
    (folder / "instruction.md").unlink()
    (folder / "instruction.md").symlink_to("instruction.md")
    with pytest.raises(HarborTaskError, match=r"task 'task': .*instruction\.md"):
        read_task(folder)


def test_a_folder_without_what_it_needs_is_refused(make_task: MakeTask, tmp_path: Path) -> None:
    with pytest.raises(HarborTaskError, match="has no environment/Dockerfile"):
        read_task(make_task(dockerfile=False))
    with pytest.raises(HarborTaskError, match=r"no folder in it has a task\.toml"):
        find_tasks(make_task(name="other") / "tests")
    with pytest.raises(HarborTaskError, match="must be a task folder"):
        find_tasks(tmp_path / "none")
    assert [path.name for path in find_tasks(tmp_path)] == ["other", "task"]


def test_the_network_is_what_the_task_and_its_user_allow(make_task: MakeTask) -> None:
    closed, opened = read_task(make_task()), read_task(make_task("", name="open"))
    listed = read_task(make_task('allowed_hosts = ["index.example"]', name="listed"))
    asked = [(closed, "*:443"), (listed, ""), (opened, "*:443, *:80"), (opened, "none")]
    allowed = [(), ("index.example:80", "index.example:443"), ("*:443", "*:80"), ()]
    assert [network_of(task, network) for task, network in asked] == allowed
    with pytest.raises(HarborTaskError, match="allow_internet"):
        network_of(opened, "")


@pytest.mark.parametrize(
    ("script", "network", "warned"),
    [
        ("apt-get install -y curl", "none", True),
        ("curl -LsSf https://example.org/install.sh | sh", "none", True),
        ("python3 -m pip install pytest", "none", True),
        ("uvx pytest", "none", True),
        ("pytest /tests/apt-get", "none", False),
        ("apt-get update", "*:443", False),
    ],
)
def test_tests_that_fetch_something_without_a_network_are_named(
    make_task: MakeTask, caplog: pytest.LogCaptureFixture, script: str, network: str, warned: bool
) -> None:
    folder = make_task("")
    (folder / "tests" / "test.sh").write_text(f"#!/bin/sh\n{script}\n")
    HarborTasks(str(folder), network=network)
    assert ("tests that fetch something run without a network, and mostly score 0: task" in caplog.text) == warned


def test_a_task_set_tells_what_cannot_be_run_before_anything_runs(make_task: MakeTask, tmp_path: Path) -> None:
    make_task("gpus = 2", name="wide")
    make_task(name="small")
    with pytest.raises(TaskSetError, match=r"task 'wide': environment\.gpus: '2'"):
        load_task_set("harbor", path=str(tmp_path))
    task_set = HarborTasks(str(tmp_path), unsupported="skip")
    (task,) = task_set.tasks()
    assert task.task_id == "small"
    assert isinstance(task_set.environment(task), HarborEnvironment)
    assert isinstance(HarborTasks(str(tmp_path), agent="run", unsupported="skip").environment(task), HarborAgent)
    with pytest.raises(ValueError, match="must be 'refuse' or 'skip'"):
        HarborTasks(str(tmp_path), unsupported="maybe")
    with pytest.raises(HarborTaskError, match=r"has no solution/solve\.sh"):
        oracle(task)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("instruction.md", "Räume auf.\n".encode("latin-1"), "instruction.md: must be UTF-8"),
        ("instruction.md", b"Do\0it.\n", "instruction.md: holds a NUL"),
        ("instruction.md", "Räume auf.\n".encode("utf-16")[:-1], "instruction.md: must be UTF-8"),
        ("task.toml", b"# caf\xe9\n", "task.toml: must be UTF-8"),
        ("environment/compose.yaml", b"services: {m\xe9: {}}", "compose.yaml: "),
        ("environment/compose.yaml", b"[" * 300, "compose.yaml: "),
        ("environment/compose.yaml", b"services: 2026-99-99", "compose.yaml: "),
    ],
)
def test_one_bad_task_hides_no_other(make_task: MakeTask, tmp_path: Path, name: str, content: bytes, said: str) -> None:
    for each in ("bad", "fine", "worse"):
        make_task(name=each)
    (tmp_path / "bad" / name).write_bytes(content)
    (tmp_path / "worse" / "tests" / "test.sh").unlink()
    with pytest.raises(TaskSetError) as refused:
        load_task_set("harbor", path=str(tmp_path))
    first, *_, last = str(refused.value).splitlines()
    assert f"task 'bad': {said}" in first
    assert last == "task 'worse': has no tests/test.sh"
    assert [each.task_id for each in HarborTasks(str(tmp_path), unsupported="skip").tasks()] == ["fine"]


def test_a_folder_that_may_not_be_read_is_told_by_name(make_task: MakeTask, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # Who may read everything.
        run_tests_as_other_user("may_not_be_read", "tests/unit/clients/environments/test_harbor_folders.py")
        return
    make_task(name="fine")
    make_task(name="locked").chmod(0)
    secret = make_task(name="secret") / "environment" / "data"
    secret.touch(0)
    with pytest.raises(TaskSetError) as refused:
        load_task_set("harbor", path=str(tmp_path))
    (tmp_path / "locked").chmod(0o700)
    assert "task 'locked': " in str(refused.value)
    assert "task 'secret': environment/data: may not be read" in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [
        "\N{BYTE ORDER MARK}Räume auf.\r\n".encode(),
        "Räume auf.\n".encode("utf-16"),
        codecs.BOM_UTF16_BE + "Räume auf.\n".encode("utf-16-be"),
        "<!-- BENCHMARK canary 1 -->\n# canary GUID 2\n\n\nRäume auf.\n".encode(),
    ],
)
def test_an_instruction_is_read_as_it_was_meant(make_task: MakeTask, content: bytes) -> None:
    folder = make_task()
    (folder / "instruction.md").write_bytes(content)
    assert read_task(folder).instruction == "Räume auf.\n"


def test_sizes_and_places_are_taken_as_the_format_has_them(make_task: MakeTask) -> None:
    task = read_task(make_task('cpus = 1.5\nmemory_mb = 512.0\nos = "Linux"\nworkdir = "/opt/app"'))
    assert (task.cpus, task.memory_mib, task.workdir) == (2, 512, "/opt/app")


def test_odd_members_are_named_one_by_one(make_task: MakeTask) -> None:
    folder = make_task()
    tests = folder / "tests"
    (tests / "data").mkdir()
    (tests / "data" / "near").symlink_to("../test.sh")
    (tests / "data" / "lost").symlink_to("nowhere")
    (folder / "environment" / "anywhere").symlink_to("/etc/hostname")
    os.mkfifo(folder / "environment" / "pipe")
    assert read_task(folder).name == "task"
    (tests / "absolute").symlink_to("/etc/hostname")
    (tests / "data" / "climbing").symlink_to("../../instruction.md")
    os.mkfifo(folder / "solution" / "pipe")
    with pytest.raises(HarborTaskError) as refused:
        read_task(folder)
    assert str(refused.value).splitlines() == [
        "task 'task': tests/absolute: a link to '/etc/hostname', which leads out of tests",
        "task 'task': tests/data/climbing: a link to '../../instruction.md', which leads out of tests",
        "task 'task': solution/pipe: neither a file nor a directory nor a link",
    ]


def test_an_archive_leaves_out_no_file(tmp_path: Path) -> None:
    place = tmp_path / "content"
    (place / "empty").mkdir(parents=True)
    (place / "one").write_text("same")
    os.link(place / "one", place / "two")
    (place / os.fsdecode(b"caf\xe9")).write_text("latin")
    os.mkfifo(place / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place / "socket"))
        content = archive_of(place, (place / "one",))
    unpacked = tmp_path / "unpacked"
    with tarfile.open(fileobj=BytesIO(content)) as archive:
        assert [member.name for member in archive if member.islnk()] == []
        archive.extractall(unpacked, filter="tar")
    assert sorted(os.listdir(os.fsencode(unpacked))) == [b"caf\xe9", b"empty", b"one", b"pipe", b"two"]
    assert (unpacked / "two").read_text() == "same"


def test_what_an_agent_left_running_is_killed_unless_the_task_needs_it(make_task: MakeTask) -> None:
    assert not read_task(make_task()).keeps_running
    assert read_task(EXAMPLES / "answer-questions").keeps_running
    wanted = make_task(rest='[metadata]\ncallsheet_background = "run"', name="wanted")
    assert read_task(wanted).keeps_running
    with pytest.raises(HarborTaskError, match="callsheet_background"):
        read_task(make_task(rest='[metadata]\ncallsheet_background = "stop"', name="odd"))
    with pytest.raises(ValueError, match="background"):
        HarborTasks(str(wanted), network="none", background="stop")


def test_an_archive_is_the_same_wherever_it_is_made(tmp_path: Path) -> None:
    contents = []
    for name, stamp in (("one", 1), ("two", 2_000_000_000)):
        place = tmp_path / name
        (place / "bin").mkdir(parents=True)
        for file in ("run.sh", "data"):
            (place / "bin" / file).write_text(file)
            (place / "bin" / file).chmod(0o644)
        (place / "link").symlink_to("bin/data")
        os.utime(place / "bin" / "run.sh", (stamp, stamp))
        contents.append(archive_of(place, executable=True))
    assert contents[0] == contents[1]
    with tarfile.open(fileobj=BytesIO(contents[0])) as archive:
        modes = {member.name: member.mode & 0o111 for member in archive if member.isreg()}
    assert modes == {"bin/run.sh": 0o111, "bin/data": 0}
