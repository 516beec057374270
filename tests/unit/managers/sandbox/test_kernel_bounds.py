"""What one sandbox may take of what the kernel has for all."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from callsheet.deploy.checks import not_enforced
from callsheet.managers.open_files import open_files_of_commands
from callsheet.managers.sandbox.backend import SandboxSpec
from callsheet.managers.sandbox.commands.requests import sandbox_spec
from callsheet.managers.sandbox.errors import InputRefusedError
from callsheet.managers.sandbox.isolation.kernel_bounds import kernel_bounds, memory_limits, most_processes
from callsheet.managers.sandbox.settings import SandboxSettings

from tests.support.sandbox_attempts import attempt_of, reset

SPEC = SandboxSpec("one", memory_mib=256, disk_mib=32, max_processes=64, cores=frozenset({0}))


def test_system_v_memory_is_half_of_the_memory_in_pages() -> None:
    settings = kernel_bounds(SPEC, {}, system_v=True).settings
    assert int(settings["kernel/shmall"]) * resource.getpagesize() == 128 << 20


def test_without_the_right_nothing_of_system_v_is_set() -> None:
    settings = kernel_bounds(SPEC, {"/tmp": 7}, system_v=False).settings
    assert not [name for name in settings if name.startswith("kernel/")]
    assert int(settings["user/max_inotify_watches"]) > 0


def test_a_stack_is_no_way_around_the_memory_limit() -> None:
    soft, hard = memory_limits(64 << 20)["RLIMIT_STACK"]
    assert 0 < soft <= hard <= 64 << 20


@pytest.mark.parametrize("wanted", [0, 1, 40])
def test_so_many_processes_are_taken(tmp_path: Path, wanted: int) -> None:
    settings = SandboxSettings(data_directory=tmp_path, most_processes=40)
    action = reset()
    action.env_reset.max_processes = wanted
    spec = sandbox_spec("one", attempt_of(action), frozenset({0}), settings)
    assert spec.max_processes == (wanted or 40)


@pytest.mark.parametrize("wanted", [41, 1_000_000])
def test_more_processes_are_refused_with_the_field_the_value_and_the_rule(tmp_path: Path, wanted: int) -> None:
    settings = SandboxSettings(data_directory=tmp_path, most_processes=40)
    action = reset()
    action.env_reset.max_processes = wanted
    with pytest.raises(InputRefusedError, match=f"max_processes: {wanted}: must be at most 40") as refused:
        sandbox_spec("one", attempt_of(action), frozenset({0}), settings)
    assert refused.value.reason == "too_many_processes"


def test_one_sandbox_leaves_most_processes_to_others() -> None:
    assert most_processes() * 8 <= int(Path("/proc/sys/kernel/pid_max").read_text())
    assert most_processes() >= 1


def test_shortfalls_are_told_by_capability() -> None:
    held = dict.fromkeys(("memory_hard", "socket_memory_hard", "own_user", "own_file_locks", "landlock"), "yes")
    assert not_enforced(held) == ["records of file locks", "the bandwidth of memory and disks"]
    told = not_enforced({**held, "memory_hard": "no", "own_user": "no"})
    assert told[:2] == ["the memory of all its processes together", "pipes, files watched by epoll, signals that wait"]


def test_the_limits_of_commands_leave_room_for_their_manager() -> None:
    soft, hard = open_files_of_commands(own_user=True)
    assert soft <= hard <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
