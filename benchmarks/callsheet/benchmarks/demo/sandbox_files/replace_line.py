"""The editing tool of the demo's agent: replaces one line of a file.

Run as `python3 replace_line.py FILE LINE TEXT`, with lines counted from 1.
"""

import sys


def main() -> int:
    """Replaces the line and shows its neighbourhood; exit code 2 for a line that is not there."""
    path, number, text = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with open(path, encoding="utf-8", newline="") as file:
        lines = file.read().split("\n")
    if not 1 <= number <= len(lines):
        sys.stderr.write(f"{path} has {len(lines)} lines, so there is no line {number}\n")
        return 2
    lines[number - 1] = text
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write("\n".join(lines))
    for index in range(max(0, number - 3), min(len(lines), number + 2)):
        sys.stdout.write(f"{index + 1:5} {lines[index]}\n")
    return 0


sys.exit(main())
