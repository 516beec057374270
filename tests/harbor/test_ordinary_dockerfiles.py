"""Ten tasks with Dockerfiles as people write them, built over a registry, as root and as another user."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest
from callsheet.environments import load_task_set
from callsheet.environments.harbor import nothing, oracle

from tests.support.harbor_stack import harbor_stack, scores_of
from tests.support.other_user import TESTS_TIMEOUT_S, run_tests_as_other_user

_BASE = "debian:bookworm-slim"
_REWARD = "/logs/verifier/reward.txt"
_AGENT = "RUN echo 'agent:x:1234:77::/srv/agent:/bin/sh' >>/etc/passwd && echo 'crew:x:77:' >/etc/group"
# Of each task its Dockerfile, and what its test runs in /srv besides asking for the file `done`.
_TASKS = {
    "three-images": (
        f"FROM {_BASE} AS one\nRUN echo 1 >/one\nFROM {_BASE} AS two\nCOPY --from=one /one /two\n"
        f"FROM {_BASE}\nCOPY --from=two /two /three\nWORKDIR /srv",
        '[ "$(cat /three)" = 1 ]',
    ),
    "user": (
        f"FROM {_BASE}\n{_AGENT}\nUSER agent\nWORKDIR /srv",
        '[ "$(id -u):$(id -g):$USER:$HOME" = 1234:77:agent:/srv/agent ]',
    ),
    "user-number": (
        f"FROM {_BASE}\n{_AGENT}\nWORKDIR /srv\nUSER 4321:crew",
        '[ "$(id -u):$(id -g):$HOME" = 4321:77:/ ]',
    ),
    "root-again": (
        f"FROM {_BASE}\n{_AGENT}\nUSER agent\nRUN true\nUSER root\nWORKDIR /srv",
        '[ "$(id -u):$HOME" = 0:/root ]',
    ),
    "arguments": (
        "ARG BASE=debian\nARG TAG=bookworm-slim\nFROM ${BASE}:$TAG\nARG GREETING=hello\n"
        "ENV SAID=$GREETING\nRUN echo $GREETING >/greeting\nWORKDIR /srv",
        '[ "$SAID $(cat /greeting)" = "hello hello" ]',
    ),
    "stage-of-a-stage": (
        f"FROM --platform=linux/amd64 {_BASE} AS builder\nRUN echo built >/made\nFROM builder AS next\n"
        "RUN echo next >>/made\nFROM next\nWORKDIR /srv",
        '[ "$(cat /made | tr "\\n" " ")" = "built next " ]',
    ),
    "copied-image": (
        f"FROM scratch\nCOPY --from={_BASE} / /\nENV PATH=/bin\nWORKDIR /srv\nRUN echo here >/here",
        "[ -e /here ]",
    ),
    "heredocs": (
        f"FROM {_BASE}\nRUN <<EOF\nset -e\necho first >/made\necho $((1 + 1)) >>/made\nEOF\n"
        "COPY <<'one' <<two /etc/made/\n$HOME\none\nplain\ntwo\n"
        "RUN cat <<A >/a && cat <<-B >/b\na $HOME\nA\n\tb\n\tB\n"
        "RUN <<EOF\n#!/bin/bash\n[[ $BASH_VERSION ]] && echo bash >/shell\nEOF\nWORKDIR /srv",
        "cd /etc/made && "
        """[ "$(cat /made one two /a /b /shell | tr '\\n' ' ')" = 'first 2 $HOME plain a /root b bash ' ]""",
    ),
    "shell-and-lines": (
        f'# syntax=docker/dockerfile:1\nFROM {_BASE}\nSHELL ["/bin/bash", "-ec"]\n'
        "RUN x=(a b); \\\n    # a comment in between\n    echo ${x[1]} >/made\n"
        "HEALTHCHECK NONE\nLABEL a=b\nVOLUME /data\nEXPOSE 80\nWORKDIR /srv",
        '[ "$(cat /made)" = b ]',
    ),
    "context": (
        f"FROM {_BASE}\nWORKDIR /srv/app\nCOPY --chown=1:1 data/ ./\nADD data/file /added\nRUN ln -s file link",
        '[ "$(cat link /added)" = "content\ncontent" ] && [ "$PWD" = /srv/app ]',
    ),
}


def _make_task(folder: Path, dockerfile: str, test: str) -> None:
    for name, text in {
        "task.toml": "[environment]\nallow_internet = false\nmemory_mb = 256\nstorage_mb = 64\n",
        "instruction.md": "Make the file `done`.\n",
        "environment/Dockerfile": f"{dockerfile}\n",
        "environment/data/file": "content\n",
        "tests/test.sh": f"#!/bin/sh\n[ -e done ] && {test} && echo 1 >{_REWARD} || echo 0 >{_REWARD}\n",
        "solution/solve.sh": "#!/bin/sh\ntouch done\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


async def test_ten_ordinary_dockerfiles(tmp_path: Path) -> None:
    for name, (dockerfile, test) in _TASKS.items():
        _make_task(tmp_path / "tasks" / name, dockerfile, test)
    assert len(_TASKS) == 10
    task_set = load_task_set("harbor", path=str(tmp_path / "tasks"))
    with anyio.fail_after(220):
        async with harbor_stack(tmp_path) as client:
            assert await scores_of(client, "oracle", task_set, oracle) == dict.fromkeys(
                sorted(_TASKS), pytest.approx(1.0)
            )
            assert await scores_of(client, "nothing", task_set, nothing) == dict.fromkeys(sorted(_TASKS), 0.0)


if os.geteuid() == 0:

    @pytest.mark.timeout(TESTS_TIMEOUT_S + 20)
    def test_all_of_this_holds_for_an_unprivileged_user() -> None:
        run_tests_as_other_user("test_ten_ordinary_dockerfiles", "tests/harbor/test_ordinary_dockerfiles.py")
