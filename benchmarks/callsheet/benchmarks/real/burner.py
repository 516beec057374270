"""A command of the benchmark: uses so many CPU seconds, at most so many cores, and waits the rest of the time.

Runs alone in a sandbox, on whatever Python is there: no imports but the standard library's.
"""

import sys
import time

_SLICE_S = 0.005


def main() -> None:
    """Burns `argv[1]` CPU seconds, the interpreter's own start included, using `argv[2]` of a core when it is free."""
    cpu_s, use = float(sys.argv[1]), float(sys.argv[2])
    waited_for = 0.0
    while True:
        used = time.process_time()
        time.sleep((used - waited_for) * (1.0 / use - 1.0))
        waited_for = used
        if used >= cpu_s:
            return
        until = min(used + _SLICE_S, cpu_s)
        while time.process_time() < until:
            pass


if __name__ == "__main__":
    main()
