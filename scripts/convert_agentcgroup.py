"""Converts numbers extracted from AgentCgroup's public raw data to Callsheet's trace format, on standard output.

    .venv/bin/python scripts/convert_agentcgroup.py extracted.jsonl.gz > coding.jsonl

The rules are in callsheet.benchmarks.simulator.traces.agentcgroup, both formats in docs/reference/trace-format.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

from callsheet.benchmarks.simulator.input_table import InputError
from callsheet.benchmarks.simulator.traces.agentcgroup import convert
from callsheet.benchmarks.simulator.traces.lines import read_lines


def main(arguments: list[str]) -> int:
    """Converts the one file named; 0 when all went well, 2 when it is not right."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    path = Path(arguments[0])
    try:
        for line in convert(read_lines(path), path.name):
            print(line)
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
