"""Hosts of network namespaces: each has an address of its own and no other, and a wire between them fails as told.

Their processes share this machine's cores, memory and files. Needs root and `ip`.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from callsheet.managers.supervision.processes import ProcessSpec

from tests.support.clusters import ROOT, Part
from tests.support.on_host import enter

_NAMESPACES = Path("/run/netns")
_NETWORK = "10.77.0"
_COUNT = itertools.count()


class Host:
    """One host.

    Attributes:
        name: Of the host.
        address: Its only one beside its own loopback addresses.
    """

    def __init__(self, name: str, place: int, namespace: str, wire: subprocess.Popen[str], directory: Path) -> None:
        self.name = name
        self.address = f"{_NETWORK}.{place + 1}"
        self._place = place
        self._namespace = namespace
        self._wire = wire
        self._directory = directory

    def part(self, name: str, module: str, *arguments: str, environment: Mapping[str, str], clock_s: int = 0) -> Part:
        """Returns a process of it that is not started yet.

        Args:
            name: For messages and its log.
            module: Run as `python -m`; it says ready as those of `callsheet` do.
            arguments: Its command line.
            environment: Variables, of which PYTHONPATH is one.
            clock_s: Seconds by which its `time.time` is ahead.
        """
        spec = ProcessSpec(
            name=name,
            module="tests.support.on_host",
            arguments=(str(_NAMESPACES / self._namespace), str(clock_s), module, *arguments),
            environment=environment,
            log_path=self._directory / f"{name}.log",
        )
        return Part(spec)

    def inside(self, *command: str) -> list[str]:
        """The command that runs another one there, where the host's name is its own."""
        name = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name)
        return ["ip", "netns", "exec", self._namespace, *name, *command]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread, and what it starts, is there for the length of the block."""
        with Path("/proc/thread-self/ns/net").open() as own:
            enter(str(_NAMESPACES / self._namespace))
            try:
                yield
            finally:
                enter(f"/proc/self/fd/{own.fileno()}")

    def cut(self) -> None:
        """Takes it off the wire: nothing comes or goes, and nobody is told."""
        self._set(heard=False, hears=False)

    def deafen(self) -> None:
        """Drops what others send to it; they still hear it."""
        self._set(hears=False)

    def silence(self) -> None:
        """Drops what it sends; it still hears others."""
        self._set(heard=False)

    def slow_down(self, late_s: float) -> None:
        """Delays all that it sends."""
        self._set(late_s=late_s)

    def mend(self) -> None:
        """Undoes all that."""
        self._set()

    def _set(self, *, late_s: float = 0.0, heard: bool = True, hears: bool = True) -> None:
        orders, answers = self._wire.stdin, self._wire.stdout
        assert orders is not None
        assert answers is not None
        orders.write(json.dumps([self._place, late_s, heard, hears]) + "\n")
        orders.flush()
        assert answers.readline() == "done\n", f"the wire ended: {self._wire.poll()}"


@contextmanager
def hosts_of(names: Sequence[str], directory: Path) -> Iterator[list[Host]]:
    """Makes hosts for the length of the block; whatever still runs there must have ended by then.

    Args:
        names: Of the hosts.
        directory: For the logs of their processes.
    """
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("needs root and ip (of iproute2)")
    _remove_left_over()
    prefix = f"callsheet-{os.getpid()}-{next(_COUNT)}"
    wire_namespace, *namespaces = [f"{prefix}-{name}" for name in ("wire", *names)]
    interfaces = [f"host{place}" for place in range(len(names))]
    try:
        _ip("netns", "add", wire_namespace)
        for place, (namespace, interface) in enumerate(zip(namespaces, interfaces, strict=True)):
            _ip("netns", "add", namespace)
            # IPv6 would speak by itself.
            _in(namespace, "sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1")
            _in(wire_namespace, "ip", "link", "add", interface, "type", "veth", "peer", "eth0", "netns", namespace)
            _in(namespace, "ip", "link", "set", "eth0", "address", f"02:00:00:00:00:{place + 1:02x}")
            _in(namespace, "ip", "address", "add", f"{_NETWORK}.{place + 1}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _in(namespace, "ip", "link", "set", link, "up")
            _in(wire_namespace, "ip", "link", "set", interface, "up")
        command = ["ip", "netns", "exec", wire_namespace, sys.executable, "-m", "tests.support.wire", *interfaces]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as wire:
            assert wire.stdout is not None
            assert wire.stdout.readline() == "ready\n"
            yield [Host(name, place, namespaces[place], wire, directory) for place, name in enumerate(names)]
    finally:
        for namespace in (*namespaces, wire_namespace):
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)


def _remove_left_over() -> None:
    """Removes what a test that was killed has left."""
    for path in _NAMESPACES.glob("callsheet-*"):
        found = re.match(r"callsheet-(\d+)-", path.name)
        if found is not None and not Path("/proc", found[1]).exists():
            _ip("netns", "delete", path.name)


def _in(namespace: str, *command: str) -> None:
    _ip("netns", "exec", namespace, *command)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
