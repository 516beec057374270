"""Names that a sandbox with an image has for itself: localhost and its own, whatever the image has in /etc."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from callsheet.managers.executor import Completed
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.files.host_python import python_below
from callsheet.managers.sandbox.files.root_filesystem import SYSTEM_SHOWN
from callsheet.managers.sandbox.isolation.bubblewrap import find_system_python
from callsheet.managers.sandbox.network.destinations import Destination
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.managers.sandbox.settings import Isolation

from tests.support.executor_runs import completed
from tests.support.expected import expect
from tests.support.root_filesystems import make_root, require_overlays
from tests.support.sandbox_attempts import attempt_of, reset, step
from tests.support.sandboxes import Variant, settings_for

pytestmark = pytest.mark.anyio

ALL = "127.0.0.1 localhost sandbox\n::1 localhost\n"
OWN = "10.0.0.7 db # ours"
LISTED = "127.0.0.1\tlocalhost\n::1 ip6-localhost localhost # IPv6\n127.0.0.1 sandbox"
# What is done in the image's /etc, beside a directory $OUT, and the hosts of its sandbox; None if nothing is laid.
IMAGES: Mapping[str, tuple[str, str | None]] = {
    "no file": ("true", ALL),
    "no directory": ("rm -r ../etc", ALL),
    "a directory that may not be written": ("chmod 555 .", ALL),
    "an empty file": (": >hosts", ALL),
    "a file of its own": (f"printf %s '{OWN}' >hosts; chmod 400 hosts", f"{OWN}\n{ALL}"),
    "all lines": (f"printf %s '{LISTED}' >hosts", LISTED),
    "another address": ("echo 127.9.9.9 localhost >hosts", "127.9.9.9 localhost\n127.0.0.1 sandbox\n::1 localhost\n"),
    "a link inside": (f"echo '{OWN}' >other; ln -s other hosts", f"{OWN}\n{ALL}"),
    "a link from the root": (f"echo '{OWN}' >other; ln -s /etc/other hosts", f"{OWN}\n{ALL}"),
    "a link that leads nowhere": ("ln -s /nowhere hosts", ALL),
    "a link out": ("ln -s $OUT/hosts hosts", ALL),
    "a link out, by parents": ("ln -s ../../../../../../../../../../../../$OUT/hosts hosts", ALL),
    "a link to memory": ("ln -s /run/hosts hosts", ALL),
    "a directory that is a link": ("cd ..; mkdir -p usr; mv etc usr; ln -s usr/etc etc", ALL),
    "a directory that is a link out": ("cd ..; rm -r etc; ln -s $OUT etc", None),
    "a directory in its place": ("mkdir hosts", None),
    "a pipe in its place": ("mkfifo hosts", None),
    "a file that is huge": ("truncate -s 8G hosts", None),
}
CONNECTS = """
import socket
server = socket.create_server(("localhost", 0))
socket.create_connection(("localhost", server.getsockname()[1]))
own = socket.gethostbyname(socket.gethostname())
print(socket.gethostname(), own, socket.getaddrinfo("localhost", 1, socket.AF_INET6)[0][4][0])
"""


@pytest.mark.parametrize("name", IMAGES)
async def test_a_sandbox_knows_localhost_and_its_own_name(tmp_path: Path, name: str) -> None:
    require_overlays()
    change, hosts = IMAGES[name]
    etc, outside = make_root(tmp_path / "images" / "own") / "etc", tmp_path / "outside"
    outside.mkdir()
    await anyio.run_process(["sh", "-c", change], cwd=etc, env={"OUT": str(outside)})
    settings = replace(
        settings_for(Variant(Isolation.BUBBLEWRAP, groups=True), tmp_path / "data"),
        provisioning=ProvisioningSettings(images=tmp_path / "images"),
        network=(Destination.parse("127.0.0.1:4321"),),
    )
    executor = build_sandbox_executor(settings)
    python = shlex.join(python_below(Path(str(find_system_python())), SYSTEM_SHOWN))
    laid = f"cat /etc/hosts; {python} -I -c {shlex.quote(CONNECTS)}; cat /etc/hostname" if hosts is not None else ":"
    # What a set-up leaves another sandbox begins with.
    for network, reused in (([], False), ([], True), (["127.0.0.1:4321"], False)):
        action = reset(set_up="echo made >/made")
        action.env_reset.image = "own"
        action.env_reset.network.extend(network)
        made = await completed(executor, action, resources={"memory": 64})
        assert made.env_reset.set_up_reused == reused
        result = expect(Completed, await executor.run(attempt_of(step(laid), sandbox_id=made.env_reset.sandbox_id)))
        told = result.succeeded.env_step.stdout.inline.decode()
        assert told == (f"{hosts}sandbox 127.0.0.1 ::1\nsandbox\n" if hosts is not None else ""), result
    await executor.close()
    assert list(outside.iterdir()) == []
