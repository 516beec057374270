"""The division of a machine and the command lines of a stack's processes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from callsheet.deploy.command_lines import role_arguments, secret_variables
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import check_machine
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.inference.settings import share_of_cores
from callsheet.managers.kind import MANAGER_KINDS
from callsheet.managers.sandbox.settings import CoreSharing, Isolation
from callsheet.options.declaration import declared_options
from callsheet.scheduler.access.settings import AccessSettings


@pytest.mark.parametrize(("cores", "expected"), [(2, 1), (4, 1), (8, 2), (64, 16)])
def test_the_engine_takes_a_quarter_of_the_cores(cores: int, expected: int) -> None:
    assert share_of_cores(cores, None) == expected


@pytest.mark.parametrize(("cores", "requested"), [(1, None), (2, 2), (4, 0), (4, 5)])
def test_the_engine_never_takes_all_cores(cores: int, requested: int | None) -> None:
    with pytest.raises(ValueError, match="engine threads"):
        share_of_cores(cores, requested)


@pytest.mark.parametrize(
    ("managers", "told"),
    [((Role.SCHEDULER,), "managers: 'scheduler'"), ((Role.NOOP, Role.NOOP), "once")],
    ids=["the scheduler is no manager", "a manager can be there once"],
)
def test_wrong_managers_are_refused(managers: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        StackSettings(Path("data"), managers=managers)


def _line(role: str, settings: StackSettings, cores: int = 2) -> list[str]:
    return role_arguments(role, settings, address="a:1", cores=cores)


def _option(line: list[str], name: str) -> str | None:
    return line[line.index(name) + 1] if name in line else None


def test_all_managers_of_a_stack_declare_the_same_node() -> None:
    settings = StackSettings(Path("/data"), memory_mib=1024)
    lines = [_line(role, settings, 4) for role in settings.managers]
    declared = {tuple(_option(line, name) for name in ("--cpus", "--memory-mib", "--scheduler")) for line in lines}
    assert declared == {("4", "1024", "a:1")}


def test_the_scheduler_gets_its_address_and_directory() -> None:
    line = role_arguments(Role.SCHEDULER, StackSettings(Path("/data")), address="127.0.0.1:0", cores=2)
    assert line[:5] == ["scheduler", "--data-dir", "/data", "--listen", "127.0.0.1:0"]


def test_with_tokens_weights_are_published_from_below_a_directory(tmp_path: Path) -> None:
    def places(settings: StackSettings, role: Role = Role.INFERENCE) -> list[str]:
        return [value for option, value in pairwise(_line(role, settings)) if option == "--weights-below"]

    access = AccessSettings(tokens=tmp_path / "tokens.json")
    assert places(StackSettings(Path("/data"))) == []
    assert places(StackSettings(Path("/data"), access=access)) == ["/data/weights"]
    assert places(StackSettings(Path("/data"), access=access), Role.SANDBOX) == []
    given = StackSettings(Path("/data"), access=access, given={"weights_below": ("/runs", "s3://bucket/runs")})
    assert places(given) == ["/runs", "s3://bucket/runs"]


def test_isolation_reaches_those_that_make_sandboxes() -> None:
    settings = StackSettings(Path("/data"), given={"isolation": Isolation.NONE})
    reached = [_option(_line(role, settings), "--isolation") for role in (Role.SANDBOX, Role.INFERENCE)]
    assert reached == ["none", None]


def test_registries_builds_stages_and_networks_reach_those_that_make_sandboxes(tmp_path: Path) -> None:
    settings = StackSettings(
        Path("/data"),
        given={
            "registry": ("docker.io", "127.0.0.1:5000"),
            "insecure_registry": ("10.0.0.1",),
            "build_images": True,
            "build_timeout": 60.0,
            "stage": (tmp_path,),
            "network": ("*:443", "index.example:80"),
        },
    )
    line = role_arguments(Role.SANDBOX, settings, address="a:1", cores=2, gateway="127.0.0.1:7078")
    expected = {
        "--registry": ["docker.io", "127.0.0.1:5000"],
        "--insecure-registry": ["10.0.0.1"],
        "--build-timeout": ["60"],
        "--stage": [str(tmp_path)],
        "--network": ["*:443", "index.example:80", "127.0.0.1:7078"],
    }
    assert {flag: [value for name, value in pairwise(line) if name == flag] for flag in expected} == expected
    assert "--build-images" in line
    assert "--registry" not in _line(Role.INFERENCE, settings)


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
    settings = StackSettings(Path("/data"), given={"isolation": isolation})
    line = role_arguments(Role.SANDBOX, settings, address="a:1", cores=2, gateway=gateway)
    assert _option(line, "--network") == reached


@pytest.mark.parametrize(
    ("settings", "cores", "shared"),
    [
        (StackSettings(Path("/data")), 8, ("ranked", "6")),
        (StackSettings(Path("/data"), managers=(Role.SANDBOX,)), 1, ("ranked", None)),
        (StackSettings(Path("/data"), given={"share_cores": CoreSharing.RESERVED}), 8, ("reserved", None)),
    ],
    ids=["all but the engine's by default", "all without an engine", "none if they are to be reserved"],
)
def test_cores_that_commands_share(settings: StackSettings, cores: int, shared: tuple[str, str | None]) -> None:
    line = _line(Role.SANDBOX, settings, cores)
    assert (_option(line, "--share-cores"), _option(line, "--shared-cpus")) == shared


def test_one_manager_runs_all_commands_where_cores_are_shared() -> None:
    stacks = (
        StackSettings(Path("/data")),
        StackSettings(Path("/data"), given={"share_cores": CoreSharing.RESERVED}),
        StackSettings(Path("/data"), managers=(Role.REWARD,)),
    )
    assert ["--no-test-suites" in _line(Role.REWARD, stack, 4) for stack in stacks] == [True, False, False]


@pytest.mark.parametrize(
    ("given", "takers"),
    [
        ({"warm_memory_mib": 0}, {"sandbox"}),
        ({"keep_set_ups": False}, {"sandbox"}),
        ({"docker_image": "python:3"}, {"sandbox", "reward"}),
        ({"kv_cache_tokens": 64}, {"inference"}),
        ({"model": "qwen"}, {"inference"}),
        ({"seed": 3}, {"inference", "reward"}),
        ({"prewarm": False}, {"reward"}),
        ({"quota_namespace": "n"}, {"tools"}),
        ({"engine_option": ("a=1", "b=2")}, {"inference"}),
    ],
)
def test_what_a_stack_is_given_reaches_the_managers_that_declare_it(given: dict[str, object], takers: set[str]) -> None:
    managers = ("sandbox", "inference", "reward", "tools")
    settings = StackSettings(Path("/data"), managers=managers, given=given)
    ((name, value),) = given.items()
    flag = f"--{name.replace('_', '-')}"
    words = [f"--no-{flag[2:]}"] if value is False else [flag, str(value)]
    if isinstance(value, tuple):
        words = [word for each in value for word in (flag, each)]
    lines = {role: _line(role, settings, 4) for role in managers}
    assert {role for role, line in lines.items() if " ".join(words) in " ".join(line)} == takers


def test_what_is_given_goes_before_what_the_stack_reckons() -> None:
    given = {"shared_cpus": 1, "test_suites": True, "load_at_first_use": True, "engine_threads": 2}
    settings = StackSettings(Path("/data"), given=given)
    lines = {role: role_arguments(role, settings, address="a:1", cores=8) for role in settings.managers}
    assert _option(lines["sandbox"], "--shared-cpus") == "1"
    assert "--test-suites" in lines["reward"]
    assert _option(lines["inference"], "--engine-threads") == "2"


def test_a_secret_is_on_no_command_line() -> None:
    settings = StackSettings(Path("/data"), given={"engine_api_key": "hidden", "server_api_key": "other"})
    assert not {"hidden", "other"} & {word for role in settings.managers for word in _line(role, settings)}
    told = {"CALLSHEET_ENGINE_API_KEY": "hidden", "CALLSHEET_ENGINE_API_KEY_FILE": ""}
    assert secret_variables(Role.INFERENCE, settings) == told
    assert "hidden" not in secret_variables("reward", settings).values()
    assert secret_variables(Role.SANDBOX, settings) == {}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"kv_cache_tokens": 64}, "kv_cache_tokens: '64': is for a manager of inference, which is none of managers"),
        ({"seed": 1}, "seed: '1': is for a manager of inference or reward, which"),
        ({"quota_redis": "redis://:hidden@h"}, "quota_redis: is for a manager of tools"),
        ({"warm_memory": 1}, "warm_memory: '1': is for no manager"),
    ],
)
def test_an_option_for_none_of_the_managers_is_refused(
    given: dict[str, object], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = StackSettings(Path("/data"), managers=(Role.SANDBOX,), given=given)
    with pytest.raises(ValueError, match=told) as caught:
        check_machine(settings)
    assert "hidden" not in str(caught.value)
    monkeypatch.setenv("CALLSHEET_QUOTA_REDIS", "of another process, too")
    if "quota_redis" in given:
        check_machine(settings)


def test_how_sandboxes_are_kept_apart_may_be_said_of_any_stack() -> None:
    given = {"isolation": Isolation.NONE, "share_cores": CoreSharing.RESERVED}
    check_machine(StackSettings(Path("/data"), managers=(Role.NOOP,), given=given))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"warm_memory_mib": -1}, "warm_memory_mib: -1: must be at least 0"),
        ({"script": Path("/s.json")}, "script: '/s.json': is for engine 'scripted'"),
        ({"network": ("nowhere",)}, "network: "),
        ({"isolation": Isolation.NONE, "network": ("*:443",)}, "network: isolation 'none' cannot limit it"),
        ({"model": ""}, "model: '' is empty"),
    ],
)
def test_managers_are_not_started_with_options_that_they_would_refuse(given: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        StackSettings(Path("/data"), given=given)


def test_up_offers_all_options_of_its_managers() -> None:
    offered = {each.name: each for each in declared_options(StackSettings)}
    managers = [MANAGER_KINDS.get(name) for name in ("sandbox", "inference", "reward", "tools")]
    assert {each.name for manager in managers for each in declared_options(manager.settings)} <= offered.keys()
    assert offered["warm_memory_mib"].default is None, "left out is left to the manager"


def test_more_arguments_come_last() -> None:
    settings = StackSettings(Path("/data"), arguments={Role.NOOP: ("--execution-s", "1")})
    assert role_arguments(Role.NOOP, settings, address="a:1", cores=2)[-2:] == ["--execution-s", "1"]


def test_one_core_is_enough_without_an_engine() -> None:
    line = _line(Role.NOOP, StackSettings(Path("/data"), managers=(Role.NOOP,)), 1)
    assert _option(line, "--cpus") == "1"
