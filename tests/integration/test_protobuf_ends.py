"""The base install works at both ends of the versions it allows, and brings nothing it should not.

Trainers pin protobuf 5.29; others have the newest. Each end gets a virtual environment with a wheel of this tree and
nothing else, so these tests need pip's package index.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
EXTRAS_ONLY = [
    *["filelock", "google.rpc", "grpc_health", "grpc_reflection", "numpy", "ortools", "psutil", "psycopg"],
    *["ray", "redis", "rich", "sqlalchemy", "structlog", "torch", "typer"],
]
PROBE = """
import importlib, importlib.util, json, pkgutil, sys
from concurrent.futures import ThreadPoolExecutor

import google.protobuf, grpc
import callsheet.client, callsheet.v1

names = []
for package in (callsheet.v1, callsheet.client):
    names += [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    importlib.import_module(name)

from callsheet.v1 import client_service_pb2, client_service_pb2_grpc, common_pb2
from callsheet.v1.google_rpc import status_pb2

status = status_pb2.Status(code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], message="the queue is full")
detail = common_pb2.ErrorDetail(field="items", value="10001", rule="at most 10000")
status.details.add().Pack(detail)
sent = client_service_pb2.ItemResult(status=status)
received = client_service_pb2.ItemResult.FromString(sent.SerializeToString())
unpacked = common_pb2.ErrorDetail()
assert received == sent and received.status.details[0].Unpack(unpacked) and unpacked == detail

with grpc.insecure_channel("127.0.0.1:1") as channel:
    assert client_service_pb2_grpc.ClientServiceStub(channel).SubmitAction
servicer = client_service_pb2_grpc.ClientServiceServicer()
client_service_pb2_grpc.add_ClientServiceServicer_to_server(servicer, grpc.server(ThreadPoolExecutor(1)))

def is_installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False

print(json.dumps({
    "modules": names,
    "protobuf": google.protobuf.__version__,
    "grpcio": grpc.__version__,
    "installed": [name for name in json.loads(sys.argv[1]) if is_installed(name)],
}))
"""


def oldest_allowed() -> list[str]:
    """The base install's requirements, each at its lower bound."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return [requirement.replace(">=", "==") for requirement in project["dependencies"]]


def run(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this tree."""
    directory = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", directory, REPOSITORY, cwd=directory)
    return next(directory.glob("callsheet-*.whl"))


def probe(directory: Path, *requirements: str | Path) -> dict[str, list[str] | str]:
    """Installs `requirements` into an environment of their own and reports what works there."""
    environment = directory / "environment"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python]
    run(*pip, "install", "--only-binary", ":all:", *requirements, cwd=directory)
    output = run(python, "-W", "error", "-c", PROBE, json.dumps(EXTRAS_ONLY), cwd=directory)
    report: dict[str, list[str] | str] = json.loads(output)
    return report


@pytest.mark.timeout(600)
# All other tests run with versions that are about the newest.
@pytest.mark.parametrize("end", ["oldest", pytest.param("newest", marks=pytest.mark.nightly)])
def test_base_install_works(wheel: Path, tmp_path: Path, end: str) -> None:
    if end == "oldest" and sys.version_info >= (3, 14):
        pytest.skip("the oldest allowed grpcio has wheels for Python 3.11 to 3.13 only")
    pins = oldest_allowed() if end == "oldest" else []
    report = probe(tmp_path, wheel, *pins)
    generated = {path.stem for path in (REPOSITORY / "protos/callsheet/v1").glob("*_pb2*.py")}
    assert generated <= {name.rpartition(".")[2] for name in report["modules"]}
    assert report["installed"] == []
    for pin in pins:
        name, _, version = pin.partition("==")
        if name in report:
            assert re.fullmatch(rf"{re.escape(version)}(\.0)*", str(report[name]))


def test_wheel_has_nothing_but_the_namespace(wheel: Path) -> None:
    names = run(sys.executable, "-m", "zipfile", "--list", wheel, cwd=wheel.parent).splitlines()[1:]
    files = [name.split()[0] for name in names]
    assert {file.split("/")[0] for file in files if ".dist-info/" not in file} == {"callsheet"}
    rooms = {file.split("/")[1] for file in files if file.startswith("callsheet/")}
    assert rooms == {marker.parent.name for marker in REPOSITORY.glob("*/callsheet/*/py.typed")}
    assert {f"callsheet/{room}/py.typed" for room in rooms} <= set(files)
    assert any(file.endswith(".dist-info/licenses/LICENSE") for file in files)
