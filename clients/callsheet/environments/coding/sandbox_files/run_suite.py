"""Runs test files in several processes of pytest, and joins their reports.

    python3 run_suite.py PACKAGES REPORT PROCESSES FILE... -- [PYTEST_OPTION...]

Which files run together depends on the number of processes alone, and no test moves to another process. Each process
is this program again, with `--one` before PACKAGES: only the directory of this file comes before Python's own modules.
"""

import os
import subprocess
import sys
from xml.etree import ElementTree


def main(packages: str, report: str, processes: str, *rest: str) -> int:
    """Returns 0, or 1 if tests failed; the exit code of a process that ended in another way, as a shell tells it."""
    files, options = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
    pytest = (sys.executable, "-B", os.path.abspath(__file__), "--one", packages, *options)
    parts = [(f"{report}.{index}", files[index :: int(processes)]) for index in range(min(int(processes), len(files)))]
    running = [subprocess.Popen((*pytest, f"--junitxml={path}", *share)) for path, share in parts]
    codes = [process.wait() for process in running]
    odd = next((code for code in codes if code not in {0, 1}), None)
    joined = ElementTree.Element("testsuites")
    for path, _ in parts:
        joined.extend(ElementTree.parse(path).getroot())
    ElementTree.ElementTree(joined).write(report)
    if odd is None:
        return max(codes)
    return odd if odd > 0 else 128 - odd


def one(packages: str, *options: str) -> int:
    """Runs pytest in this process, with a directory of packages behind all others."""
    import pytest

    sys.path.append(os.path.abspath(packages))
    return int(pytest.main(list(options)))


if __name__ == "__main__":
    sys.exit(one(*sys.argv[2:]) if sys.argv[1] == "--one" else main(*sys.argv[1:]))
