"""Names that a sandbox with an image has for itself: localhost and its own, whatever the image has in /etc."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from callsheet.managers.executor import Completed
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.files.host_python import python_below
from callsheet.managers.sandbox.files.root_filesystem import SYSTEM_SHOWN
from callsheet.managers.sandbox.isolation.bubblewrap import find_system_python
from callsheet.managers.sandbox.network.destinations import Destination
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.managers.sandbox.settings import Isolation

from tests.support.root_filesystems import make_root, require_overlays
from tests.support.sandbox_attempts import attempt_of, reset, step
from tests.support.sandboxes import Variant, settings_for

pytestmark = pytest.mark.anyio

OWN = "10.0.0.7 db # ours"
ALL = "127.0.0.1 localhost sandbox\n::1 localhost\n"
ANOTHER = "127.9.9.9 localhost\n"
LISTED = "127.0.0.1\tlocalhost\n::1 ip6-localhost localhost # IPv6\n127.0.0.1 sandbox"


def _link(target: str, content: str = "") -> Callable[[Path], None]:
    def make(root: Path) -> None:
        (root / "opt").mkdir()
        (root / "opt" / "hosts").write_text(content)
        (root / "etc" / "hosts").symlink_to(target.format(outside=root.parents[1] / "outside"))

    return make


def _etc_is_link(target: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        (root / "usr").mkdir(exist_ok=True)
        (root / "etc").rename(root / "usr" / "etc")
        (root / "etc").symlink_to(target.format(outside=root.parents[1] / "outside"))

    return make


def _has(content: str, mode: int = 0o644) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        (root / "etc" / "hosts").write_text(content)
        (root / "etc" / "hosts").chmod(mode)

    return make


def _huge(root: Path) -> None:
    _has("")(root)
    os.truncate(root / "etc" / "hosts", 1 << 33)


# What is done to the image, and the hosts that its sandbox has; None for what is left as it is.
IMAGES: Mapping[str, tuple[Callable[[Path], object], str | None]] = {
    "no file": (lambda _: None, ALL),
    "no directory": (lambda root: shutil.rmtree(root / "etc"), ALL),
    "a directory that may not be written": (lambda root: (root / "etc").chmod(0o555), ALL),
    "an empty file": (_has(""), ALL),
    "a file of its own": (_has(OWN, 0o400), f"{OWN}\n{ALL}"),
    "all lines": (_has(LISTED), LISTED),
    "another address of localhost": (_has(ANOTHER), f"{ANOTHER}127.0.0.1 sandbox\n::1 localhost\n"),
    "a link inside": (_link("../opt/hosts", OWN), f"{OWN}\n{ALL}"),
    "a link from the root": (_link("/opt/hosts", OWN), f"{OWN}\n{ALL}"),
    "a link that leads nowhere": (_link("/nowhere"), ALL),
    "a link out": (_link("{outside}/hosts"), ALL),
    "a link out, by parents": (_link("../" * 20 + "{outside}/hosts"), ALL),
    "a link to memory": (_link("/run/hosts"), ALL),
    "a directory that is a link": (_etc_is_link("usr/etc"), ALL),
    "a directory that is a link out": (_etc_is_link("{outside}"), None),
    "a directory in its place": (lambda root: (root / "etc" / "hosts").mkdir(), None),
    "a pipe in its place": (lambda root: os.mkfifo(root / "etc" / "hosts"), None),
    "a file that is huge": (_huge, None),
}
CONNECTS = """
import socket
server = socket.create_server(("localhost", 0))
socket.create_connection(("localhost", server.getsockname()[1]))
own = socket.gethostbyname(socket.gethostname())
print(socket.gethostname(), own, socket.getaddrinfo("localhost", 1, socket.AF_INET6)[0][4][0], end="")
"""


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A directory beside the images, in which nothing changes."""
    require_overlays()
    place = tmp_path / "outside"
    place.mkdir()
    (place / "hosts").write_text("untouched")
    yield place
    assert [(path.name, path.read_text()) for path in place.iterdir()] == [("hosts", "untouched")]


@pytest.mark.parametrize("name", IMAGES)
async def test_a_sandbox_knows_localhost_and_its_own_name(outside: Path, tmp_path: Path, name: str) -> None:
    change, expected = IMAGES[name]
    change(make_root(tmp_path / "images" / "own"))
    settings = settings_for(Variant(Isolation.BUBBLEWRAP, groups=True), tmp_path / "data")
    provisioning, door = ProvisioningSettings(images=tmp_path / "images"), "127.0.0.1:4321"
    executor = build_sandbox_executor(replace(settings, provisioning=provisioning, network=(Destination.parse(door),)))
    python = shlex.join(python_below(Path(str(find_system_python())), SYSTEM_SHOWN))
    try:
        # What a set-up leaves another sandbox begins with.
        for network, reused in (((), False), ((), True), ((door,), False)):
            action = reset(set_up="echo made >/opt-made")
            action.env_reset.image = "own"
            action.env_reset.network.extend(network)
            made = await executor.run(attempt_of(action, resources={"memory": 64}))
            assert isinstance(made, Completed), made
            assert made.succeeded.env_reset.set_up_reused == reused
            sandbox_id = made.succeeded.env_reset.sandbox_id
            for script, told in (
                ("cat /etc/hosts", expected),
                (f"{python} -I -c {shlex.quote(CONNECTS)}", "sandbox 127.0.0.1 ::1" if expected else None),
                ("cat /etc/hostname", None if "out" in name and expected is None else "sandbox\n"),
            ):
                if told is not None:
                    result = await executor.run(attempt_of(step(script), sandbox_id=sandbox_id))
                    assert isinstance(result, Completed), result
                    assert result.succeeded.env_step.stdout.inline.decode() == told, result
    finally:
        await executor.close()
