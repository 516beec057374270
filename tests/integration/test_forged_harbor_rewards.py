"""A policy that does nothing for its Harbor task, and leaves something behind to be scored by: its reward is 0.

The image is the policy's own, as that of most tasks: it may change each file in it, and its modes. The scores are
printed at the end of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anyio
from callsheet.client import Client, Command, Failed, Job, PolicyError, ResourceLimitError, Where
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.environments.bash_replies import bash_call
from callsheet.environments.harbor import HarborEnvironment
from callsheet.environments.harbor.folders import read_task

from tests.support.measurements import Measured
from tests.support.root_filesystems import PROGRAMS, make_root, require_overlays

PLACE = "/logs/verifier"
REWARD = f"{PLACE}/reward.txt"
REWARDS = f"echo 1 >{REWARD}; echo '{{\"reward\": 1}}' >{PLACE}/reward.json; cp {REWARD} {PLACE}/ctrf.json"
SCRIPT = f"printf '#!/bin/sh\\necho 1 >{REWARD}\\n'"
LOG = f"{PLACE}/test-stdout.txt"
LOCK = f"chmod 555 {PLACE}"
DAEMON = "setsid nohup sh -c 'while :; do %s; done' >/dev/null 2>&1 &"
FILL = "head -c 100000000 /dev/zero >%s/fill 2>/dev/null"
OWN = f"{SCRIPT} >/srv/own; chmod 755 /srv/own"
ATTACKS: Mapping[str, str] = {
    "nothing": "true",
    "rewards in a directory that may not be written": f"{REWARDS}; {LOCK}",
    "rewards in a directory that may not be read": f"{REWARDS}; chmod 000 {PLACE}",
    "a sticky directory": f"{REWARDS}; chmod 1555 {PLACE} /logs",
    "no way to the directory": f"{REWARDS}; {LOCK}; chmod 000 /logs",
    "rewards that may not be written": f"{REWARDS}; chmod 444 {PLACE}/*; {LOCK}",
    "a link in the directory's place": f"rm -rf {PLACE}; mkdir /srv/v; ln -s /srv/v {PLACE}; {REWARDS}; {LOCK}/",
    "a link above it": f"mv /logs /srv/logs; ln -s /srv/logs /logs; {REWARDS}; {LOCK}; chmod 555 /logs/",
    "links to rewards": f"echo 1 >/srv/r; ln -s /srv/r {REWARD}; ln -s /srv/none {PLACE}/reward.json; {LOCK}",
    "links in a circle": f"rm -rf {PLACE}; ln -s {PLACE} /logs/other; ln -s /logs/other {PLACE}",
    "further names of rewards": f"{REWARDS}; ln {REWARD} /srv/one; ln {PLACE}/reward.json /srv/two; {LOCK}",
    "a file in the directory's place": f"rm -rf {PLACE}; echo 1 >{PLACE}; chmod 444 {PLACE}; chmod 555 /logs",
    "directories in the places of rewards": f"mkdir -p {REWARD}/deep {PLACE}/reward.json; chmod 000 {REWARD}; {LOCK}",
    "pipes in the places of rewards and log": f"mkfifo {REWARD} {PLACE}/reward.json {LOG}; {LOCK}",
    "a directory in the place of the log": f"{REWARDS}; mkdir {LOG}; chmod 000 {LOG}; {LOCK}",
    "tests of its own": f"{REWARDS}; {LOCK}; mkdir /tests; {SCRIPT} >/tests/test.sh; chmod 555 /tests/test.sh /tests",
    "tests behind a link": f"{REWARDS}; {LOCK}; {OWN}; mkdir /srv/t; cp /srv/own /srv/t/test.sh; ln -s /srv/t /tests",
    "a directory in the script's place": f"{REWARDS}; {LOCK}; mkdir -p /tests/test.sh/a/b; chmod 000 /tests/test.sh",
    "a process that writes rewards": DAEMON % f"mkdir -p {PLACE}; echo 1 >{REWARD}; {LOCK}",
    "a process that replaces the script": f"{OWN}; {DAEMON % 'ln -sf /srv/own /tests/test.sh; rm -rf /tests'}",
    "programs of its own": f"{REWARDS}; {LOCK}; mkdir -p /usr/local/bin; {OWN}; "
    "for name in rm cat mkdir printf; do cp /srv/own /usr/local/bin/$name; done",
    "no rm": f"{REWARDS}; {LOCK}; rm /bin/rm",
    "start-up files of shells": f"{REWARDS}; {LOCK}; for file in .profile .bashrc .bash_profile .shrc; do "
    f"echo 'echo 1 >{REWARD}; exit 0' >/root/$file; cp /root/$file /etc/profile; done; export ENV=/root/.shrc",
    "a full disk": f"{REWARDS}; {LOCK}; {FILL % '/srv'}",
    "all memory": f"{REWARDS}; {LOCK}; {FILL % '/dev/shm'}; {FILL % '/tmp'}",
    "no files left": f"{REWARDS}; {LOCK}; bash -c 'touch /srv/{{1..15000}}' 2>/dev/null",
    "a mount": f"{REWARDS}; mount -t tmpfs none {PLACE}; unshare -rm mount --bind /srv {PLACE}; {LOCK}",
    "attributes and owners": f"{REWARDS}; chattr +i {REWARD} {PLACE}; chown 1234 {REWARD} {PLACE}; {LOCK}",
    "no interpreter": f"{REWARDS}; {LOCK}; rm /bin/bash",
    "an interpreter that may not be executed": f"{REWARDS}; {LOCK}; chmod 000 /bin/bash",
    "no shell": f"{REWARDS}; {LOCK}; chmod 000 /bin/sh",
    "no directory to begin in": f"{REWARDS}; {LOCK}; rm -rf /srv /tmp/*",
}
TEST = f'#!/bin/bash\n[ "$(cat /srv/answer 2>/dev/null)" = 42 ] && echo 1 >{REWARD} || echo 0 >{REWARD}\n'
TASK = """[environment]
docker_image = "tiny"
memory_mb = 128
storage_mb = 32
workdir = "/srv"
allow_internet = false
[verifier]
timeout_sec = 20
"""


async def told(job: Job, task: Path, name: str, script: str) -> str:
    """Returns the score of a policy that runs a script, or whose failure its lack is."""
    environment = HarborEnvironment(read_task(task))
    try:
        async with job.trajectory(name) as trajectory:
            await environment.reset(trajectory)
            await environment.step(trajectory, bash_call(Command.shell(script), 60.0, "1"))
            return f"{(await environment.reward(trajectory)).value:g}"
    except (PolicyError, ResourceLimitError) as error:
        return str(error)


async def score_file(job: Job, where: Where) -> list[str]:
    """Returns what a score that was planted is worth whose script wrote none, or cannot begin."""
    async with job.trajectory(f"score-{where.value}") as trajectory:
        (await trajectory.env_reset(image="tiny")).unwrap()
        found = []
        for plant in ("chmod 555 . of", "mv of /srv/of; ln -s /srv/of of; chmod 555 /srv/of", "chmod 000 of/score of"):
            (await trajectory.env_step(f"rm -rf of; mkdir of; echo 1 >of/score; {plant}")).unwrap()
            for runner in ("true", "echo x >of/score && exit 1", "no-such-program"):
                outcome = await trajectory.reward_script(runner, files={"x": b""}, score_file="of/score", where=where)
                found.append(outcome.reason.value if isinstance(outcome, Failed) else "scored")
        return found


async def test_what_is_left_behind_forges_no_reward(tmp_path: Path, measured: Measured) -> None:
    require_overlays()
    root = make_root(
        tmp_path / "images" / "tiny",
        (*PROGRAMS, "bash", "chattr", "chown", "cp", "mkfifo", "mount", "nohup", "setsid", "unshare"),
    )
    (root / "root").mkdir()
    (root / "srv").mkdir()
    for name, text in {
        "task.toml": TASK,
        "instruction.md": "Write 42 to /srv/answer.\n",
        "tests/test.sh": TEST,
    }.items():
        (tmp_path / "task" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "task" / name).write_text(text)
    settings = StackSettings(tmp_path / "stack", managers=(Role.SANDBOX,), given={"images": tmp_path / "images"})
    with anyio.fail_after(170):
        async with local_stack(settings) as stack, Client(stack.address) as client, await client.open_job("job") as job:
            honest = f"echo 42 >/srv/answer; {ATTACKS['rewards in a directory that may not be written']}"
            assert await told(job, tmp_path / "task", "honest", honest) == "1"
            for name, script in ATTACKS.items():
                found = await told(job, tmp_path / "task", name, script)
                measured(f"harbor, {name}: {found}")
                assert found != "1", name
            for where in (Where.FRESH, Where.IN_SANDBOX):
                assert await score_file(job, where) == ["score_missing", "script_failed", "runner_missing"] * 3
