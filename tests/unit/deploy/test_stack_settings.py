"""The division of a machine and the command lines of a stack's processes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from callsheet.deploy.command_lines import role_arguments
from callsheet.deploy.roles import Role
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.inference.settings import share_of_cores
from callsheet.managers.sandbox.build_settings import BuildSettings
from callsheet.managers.sandbox.network.destinations import Destination
from callsheet.managers.sandbox.registry_settings import RegistrySettings
from callsheet.managers.sandbox.settings import CoreSharing, Isolation, StageDirectory


@pytest.mark.parametrize(("cores", "expected"), [(2, 1), (4, 1), (8, 2), (64, 16)])
def test_the_engine_takes_a_quarter_of_the_cores(cores: int, expected: int) -> None:
    assert share_of_cores(cores, None) == expected


@pytest.mark.parametrize(("cores", "requested"), [(1, None), (2, 2), (4, 0), (4, 5)])
def test_the_engine_never_takes_all_cores(cores: int, requested: int | None) -> None:
    with pytest.raises(ValueError, match="engine threads"):
        share_of_cores(cores, requested)


def test_the_scheduler_is_no_manager() -> None:
    with pytest.raises(ValueError, match="managers: 'scheduler'"):
        StackSettings(Path("data"), managers=(Role.SCHEDULER,))


def test_a_manager_can_be_there_once() -> None:
    with pytest.raises(ValueError, match="once"):
        StackSettings(Path("data"), managers=(Role.NOOP, Role.NOOP))


def test_all_managers_of_a_stack_declare_the_same_node() -> None:
    settings = StackSettings(Path("/data"), memory_mib=1024)
    lines = [role_arguments(role, settings, address="a:1", cores=4) for role in settings.managers]
    for line in lines:
        assert line[line.index("--cpus") + 1] == "4"
        assert line[line.index("--memory-mib") + 1] == "1024"
        assert line[line.index("--scheduler") + 1] == "a:1"


def test_the_scheduler_gets_its_address_and_directory() -> None:
    line = role_arguments(Role.SCHEDULER, StackSettings(Path("/data")), address="127.0.0.1:0", cores=2)
    assert line[:5] == ["scheduler", "--data-dir", "/data", "--listen", "127.0.0.1:0"]


def test_isolation_reaches_those_that_make_sandboxes() -> None:
    settings = StackSettings(Path("/data"), isolation=Isolation.NONE)
    line = role_arguments(Role.SANDBOX, settings, address="a:1", cores=2)
    assert line[line.index("--isolation") + 1] == "none"
    assert "--isolation" not in role_arguments(Role.INFERENCE, settings, address="a:1", cores=2)


def test_registries_builds_stages_and_networks_reach_those_that_make_sandboxes(tmp_path: Path) -> None:
    settings = StackSettings(
        Path("/data"),
        registry=RegistrySettings(registries=("docker.io", "127.0.0.1:5000"), insecure_registries=("10.0.0.1",)),
        builds=BuildSettings(build_images=True, build_timeout_s=60.0),
        stages=(StageDirectory(tmp_path),),
        network=(Destination.parse("*:443"), Destination.parse("index.example:80")),
    )
    line = role_arguments(Role.SANDBOX, settings, address="a:1", cores=2, gateway="127.0.0.1:7078")
    given = list(pairwise(line))
    for flag, values in {
        "--registry": ["docker.io", "127.0.0.1:5000"],
        "--insecure-registry": ["10.0.0.1"],
        "--build-timeout": ["60"],
        "--stage": [str(tmp_path)],
        "--network": ["*:443", "index.example:80", "127.0.0.1:7078"],
    }.items():
        assert [value for name, value in given if name == flag] == values
    assert "--build-images" in line
    assert "--registry" not in role_arguments(Role.INFERENCE, settings, address="a:1", cores=2)
    assert "--no-build-images" in role_arguments(Role.SANDBOX, StackSettings(Path("/data")), address="a:1", cores=2)


@pytest.mark.parametrize(
    ("gateway", "isolation", "reached"),
    [
        ("127.0.0.1:7078", Isolation.BUBBLEWRAP, "127.0.0.1:7078"),
        ("0.0.0.0:7078", Isolation.BUBBLEWRAP, "127.0.0.1:7078"),
        ("10.0.0.5:7078", Isolation.BUBBLEWRAP, "10.0.0.5:7078"),
        ("127.0.0.1:7078", Isolation.NONE, None),
        ("[::1]:7078", Isolation.BUBBLEWRAP, None),
        (None, Isolation.BUBBLEWRAP, None),
    ],
)
def test_sandboxes_may_ask_for_the_gateway_of_their_stack(
    gateway: str | None, isolation: Isolation, reached: str | None
) -> None:
    settings = StackSettings(Path("/data"), isolation=isolation)
    line = role_arguments(Role.SANDBOX, settings, address="a:1", cores=2, gateway=gateway)
    assert _option(line, "--network") == reached


def _option(line: list[str], name: str) -> str | None:
    return line[line.index(name) + 1] if name in line else None


def test_commands_share_all_cores_but_the_engines_by_default() -> None:
    line = role_arguments(Role.SANDBOX, StackSettings(Path("/data")), address="a:1", cores=8)
    assert (_option(line, "--share-cores"), _option(line, "--shared-cpus")) == ("ranked", "6")
    alone = StackSettings(Path("/data"), managers=(Role.SANDBOX,))
    assert _option(role_arguments(Role.SANDBOX, alone, address="a:1", cores=1), "--shared-cpus") is None


def test_one_manager_runs_all_commands_where_cores_are_shared() -> None:
    rewards = [
        role_arguments(Role.REWARD, settings, address="a:1", cores=4)
        for settings in (
            StackSettings(Path("/data")),
            StackSettings(Path("/data"), share_cores=CoreSharing.RESERVED),
            StackSettings(Path("/data"), managers=(Role.REWARD,)),
        )
    ]
    assert ["--no-test-suites" in line for line in rewards] == [True, False, False]


def test_reserved_cores_are_what_one_asks_for() -> None:
    settings = StackSettings(Path("/data"), share_cores=CoreSharing.RESERVED)
    line = role_arguments(Role.SANDBOX, settings, address="a:1", cores=8)
    assert (_option(line, "--share-cores"), _option(line, "--shared-cpus")) == ("reserved", None)


def test_more_arguments_come_last() -> None:
    settings = StackSettings(Path("/data"), arguments={Role.NOOP: ("--execution-s", "1")})
    assert role_arguments(Role.NOOP, settings, address="a:1", cores=2)[-2:] == ["--execution-s", "1"]


def test_one_core_is_enough_without_an_engine() -> None:
    line = role_arguments(Role.NOOP, StackSettings(Path("/data"), managers=(Role.NOOP,)), address="a:1", cores=1)
    assert line[line.index("--cpus") + 1] == "1"
