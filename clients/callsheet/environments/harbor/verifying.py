"""The commands that a task's tests and its solution are run by: pure."""

from __future__ import annotations

from typing import Final

from callsheet.client import Command
from callsheet.environments.harbor.task import HarborTask, TaskFormat

TESTS: Final = "/tests"
LOGS: Final = "/logs"
SOLUTION: Final = {TaskFormat.HARBOR: "/solution", TaskFormat.TERMINAL_BENCH: "/oracle"}
# Rewards begin with an empty home; Harbor's tests may use tools below that of the image's user.
_HOME: Final = """\
eval "HOME=~$USER"
case $HOME in /*) ;; *) [ "$USER" = root ] && HOME=/root || HOME=/ ;; esac
export HOME
"""
_LOG: Final = f"{LOGS}/verifier/test-stdout.txt"
# Nobody reads the tests afterwards. A script that a signal ended has judged nothing, whatever it wrote.
_RUN: Final = f"""\
{_HOME}mkdir -p {LOGS}/verifier
%s >{_LOG} 2>&1
status=$?
cat {_LOG}
[ -z "$TEST_DIR" ] || rm -rf "$TEST_DIR"
case $status in 129 | 130 | 131 | 137 | 143) exit $status ;; esac
"""
# What else a script ends with says nothing: the reward is what it wrote. As in Harbor reward.json comes first and is an
# object of numbers, and reward.txt is a number alone; anything else is left to be refused.
_HARBOR: Final = f"""\
{_RUN}if [ -e {LOGS}/verifier/reward.json ]; then
    case $(cat {LOGS}/verifier/reward.json) in
        *"{{"*) cat {LOGS}/verifier/reward.json >"$1" ;;
        *) echo "reward.json: no object" >"$1" ;;
    esac
elif [ -e {LOGS}/verifier/reward.txt ]; then
    case $(cat {LOGS}/verifier/reward.txt) in
        *"{{"*) echo "reward.txt: no number" >"$1" ;;
        *) cat {LOGS}/verifier/reward.txt >"$1" ;;
    esac
fi
exit 0
"""
# All tests of pytest's summary must have passed, and there must be one. Its own count, where it is there, is that of
# its lines: so they were not cut, and nobody else wrote some. Without a summary there is no score.
_TERMINAL_BENCH: Final = f"""\
{_RUN}passed=0 failed=0 summary=0 broken=0 stated=
escape=$(printf '\\033[')
while IFS= read -r line || [ -n "$line" ]; do
    # Colours. An image may have no sed.
    while case $line in *"$escape"*[mK]*) ;; *) false ;; esac; do
        after=${{line#*"$escape"}} line=${{line%%%%"$escape"*}}
        line=$line${{after#*[mK]}}
    done
    case "$summary$line" in
        ?=*" short test summary info ="*) summary=1 ;;
        "1PASSED "*) passed=$((passed + 1)) ;;
        "1FAILED "* | "1ERROR "*) failed=$((failed + 1)) ;;
        1!!!*) broken=1 ;;
        1[=0-9]*" passed"*" in "*s*) stated=${{line%%%% passed*}} stated=${{stated##*[!0-9]}} ;;
    esac
done <{_LOG}
if [ $failed -gt 0 ]; then
    score=0
elif [ $passed -eq 0 ]; then
    exit 0
elif [ $status -ne 0 ] || [ $broken -eq 1 ] || [ "${{stated:-$passed}}" -ne $passed ]; then
    echo "the summary is not that of tests which came to their end" >&2
    exit 3
else
    score=1
fi
echo "{{\\"score\\": $score, \\"passed\\": $passed, \\"failed\\": $failed}}" >"$1"
"""


def started(script: str, text: bytes) -> str:
    """Returns how a script is started: as it says itself, and by bash where it says nothing."""
    return script if text.startswith(b"#!") else f"bash {script}"


def clear_command() -> Command:
    """Returns the command that empties the places of tests and their results, whatever an agent put there."""
    return Command.shell(f"rm -rf {TESTS} {LOGS}/verifier")


def tests_command(task: HarborTask, text: bytes) -> Command:
    """Returns the command that scores; its score goes where "{score}" says.

    Args:
        task: The task.
        text: The script that runs its tests.
    """
    harbor = task.format is TaskFormat.HARBOR
    script = (_HARBOR if harbor else _TERMINAL_BENCH) % started(f"{TESTS}/{task.test_script.name}", text)
    variables = {"TEST_DIR": TESTS, **task.environment, **task.verifier_environment}
    return Command.argv("sh", "-c", script, "sh", "{score}", environment=variables)


def solution_command(task: HarborTask, text: bytes) -> Command:
    """Returns the command that solves a task."""
    script = f"{SOLUTION[task.format]}/{task.solution.name}"
    return Command.shell(
        started(script, text),
        environment={"DEBIAN_FRONTEND": "noninteractive", **task.environment, **task.solution_environment},
    )
