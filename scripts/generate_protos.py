"""Generates the Python code of the contract, or checks that the committed code is current.

    python3 scripts/generate_protos.py            writes protos/callsheet/v1
    python3 scripts/generate_protos.py --check    changes nothing; exit status 1 if anything differs

The generators of stubs are old on purpose. Code made by protoc 25 (grpcio-tools 1.62) is the newest that asks nothing
of the protobuf runtime it meets: from protoc 26 on, generated code refuses a runtime older than itself, and from
grpcio-tools 1.63 on an older grpcio. So the same files import with protobuf 5.29, which trainers pin, and with the
newest (tests/integration/test_protobuf_ends.py). These generators live in their own virtual environment,
`.venv-protos`, since their protobuf is older than the one Callsheet runs with. `scripts.proto_values` generates the
frozen dataclasses.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.proto_values import value_modules  # noqa: E402

PROTOS = ROOT / "protos"
VENV = ROOT / ".venv-protos"
TOOLS = (
    "grpcio==1.62.3",
    "grpcio-tools==1.62.3",
    "mypy-protobuf==3.6.0",
    "protobuf==4.25.8",
    "setuptools==80.9.0",  # the last major version with pkg_resources, which this grpcio-tools imports
    "types-protobuf==5.29.1.20250403",
)
# grpcio-tools 1.62 has wheels for these and no later ones.
PYTHONS = ((3, 11), (3, 12))
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi", "*_values.py")
DESCRIPTORS = "descriptors.bin"
STATUS = Path("google/rpc/status_pb2.pyi")
OWN_STATUS = Path("callsheet/v1/google_rpc/status_pb2.pyi")


def find_python() -> str:
    """Returns an interpreter the generators have wheels for.

    Raises:
        SystemExit: There is none.
    """
    if sys.version_info[:2] in PYTHONS:
        return sys.executable
    for major, minor in PYTHONS:
        if found := shutil.which(f"python{major}.{minor}"):
            return found
    raise SystemExit("generate_protos: the generators need Python 3.11 or 3.12, and neither is on PATH")


def ensure_tools() -> Path:
    """Creates the generators' environment, unless it is there with the same versions.

    Returns:
        Its directory of programs.
    """
    stamp, wanted = VENV / "tools.txt", "\n".join(TOOLS)
    programs = VENV / "bin"
    if stamp.exists() and stamp.read_text() == wanted:
        return programs
    print(f"generate_protos: installing the generators in {VENV.name}")
    subprocess.run([find_python(), "-m", "venv", "--clear", VENV], check=True)
    subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", *TOOLS], check=True)
    stamp.write_text(wanted)
    return programs


def run_protoc(programs: Path, out: Path) -> None:
    """Runs every generator over every .proto file."""
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    outputs = [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    outputs += ["--include_source_info", f"--descriptor_set_out={out / DESCRIPTORS}"]
    # grpc_tools.protoc adds its own copy of the well-known types to the include path.
    python: list[str | Path] = [programs / "python", "-W", "ignore"]
    command = [*python, "-m", "grpc_tools.protoc", "-I", PROTOS, *outputs, *sources]
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"}
    result = subprocess.run(command, env=environment, cwd=PROTOS, check=False, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"generate_protos: protoc failed\n{result.stdout}{result.stderr}")


def drop_empty_grpc_modules(out: Path) -> None:
    """Deletes the service modules of files that declare no service."""
    for module in out.rglob("*_pb2_grpc.py"):
        if "class " not in module.read_text():
            module.unlink()
            module.with_suffix(".pyi").unlink(missing_ok=True)


def use_own_status(out: Path) -> None:
    """Makes the generated code take google.rpc.Status from callsheet.v1.google_rpc (see there for the reason)."""
    stub = out / OWN_STATUS
    stub.parent.mkdir(parents=True)
    (out / STATUS).rename(stub)
    shutil.rmtree(out / STATUS.parts[0])
    for module in out.rglob("*_pb2.py"):
        text = module.read_text()
        module.write_text(text.replace("from google.rpc import", "from callsheet.v1.google_rpc import"))
    for module in out.rglob("*.pyi"):
        text = module.read_text()
        module.write_text(re.sub(r"(?<![\w.])google\.rpc\.", "callsheet.v1.google_rpc.", text))


def write_values(out: Path) -> None:
    """Writes the dataclasses of messages."""
    for name, text in value_modules((out / DESCRIPTORS).read_bytes()).items():
        (out / "callsheet" / "v1" / f"{name}.py").write_text(text)


def generated_files(root: Path) -> Iterator[Path]:
    """Yields the generated files below `root`, relative to it."""
    hand_written = OWN_STATUS.with_suffix(".py")
    for pattern in GENERATED:
        for path in root.rglob(pattern):
            if (relative := path.relative_to(root)) != hand_written:
                yield relative


def differences(fresh: Path) -> list[Path]:
    """Returns the generated files that are missing, outdated or left over, relative to protos/."""

    def content(path: Path) -> bytes | None:
        return path.read_bytes() if path.exists() else None

    files = set(generated_files(fresh)) | set(generated_files(PROTOS))
    return sorted(file for file in files if content(fresh / file) != content(PROTOS / file))


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Generates the Python code of the contract.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the committed code is stale")
    check = parser.parse_args().check
    programs = ensure_tools()
    with tempfile.TemporaryDirectory() as directory:
        fresh = Path(directory)
        run_protoc(programs, fresh)
        drop_empty_grpc_modules(fresh)
        use_own_status(fresh)
        write_values(fresh)
        stale = differences(fresh)
        for file in stale if not check else []:
            (PROTOS / file).unlink(missing_ok=True)
            if (fresh / file).exists():
                shutil.copyfile(fresh / file, PROTOS / file)
    for file in stale:
        print(f"{'stale' if check else 'updated'}: protos/{file}")
    if check and stale:
        print("generate_protos: the generated code is stale; run `make protos` and commit the result")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
