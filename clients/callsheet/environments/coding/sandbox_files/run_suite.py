"""Runs test files in several processes of pytest, and joins their reports.

    python3 run_suite.py REPORT PROCESSES FILE... -- [PYTEST_OPTION...]

Which files run together depends on the number of processes alone, and no test moves to another process.
"""

import subprocess
import sys
from xml.etree import ElementTree


def main(report: str, processes: str, *rest: str) -> int:
    """Returns the highest exit code; 1 if tests failed."""
    files, options = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
    pytest = (sys.executable, "-B", "-m", "pytest", *options)
    parts = [(f"{report}.{index}", files[index :: int(processes)]) for index in range(min(int(processes), len(files)))]
    running = [subprocess.Popen((*pytest, f"--junitxml={path}", *share)) for path, share in parts]
    worst = max(process.wait() for process in running)
    joined = ElementTree.Element("testsuites")
    for path, _ in parts:
        joined.extend(ElementTree.parse(path).getroot())
    ElementTree.ElementTree(joined).write(report)
    return worst


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
