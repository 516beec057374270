"""What a benchmark ran on."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

_PACKAGES = ("callsheet", "grpcio", "protobuf", "anyio", "sqlalchemy", "ray")


def describe_machine() -> dict[str, Any]:
    """Cores, processor, load before the run, Python and the packages that matter."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "kernel": platform.release(),
        "load_1m": os.getloadavg()[0],
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def filesystem_of(path: Path) -> str:
    """Type of the file system that a directory is on, for instance "ext4"; empty where that cannot be told."""
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    mounts = {mount: kind for _, mount, kind, *_ in map(str.split, lines)}
    return next((mounts[str(place)] for place in (path, *path.parents) if str(place) in mounts), "")


def fsync_p50_us(directory: Path, samples: int = 50) -> float:
    """Median microseconds of appending 4 KiB to a file and making it durable: the floor of every commit."""
    took: list[float] = []
    path = directory / "fsync"
    with path.open("wb", buffering=0) as file:
        for _ in range(samples):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began)
    path.unlink()
    return round(median(took) * 1e6, 1)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
