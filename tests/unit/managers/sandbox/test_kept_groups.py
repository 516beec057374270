"""What stays of a sandbox's groups from one command to the next: files that are open, the leaf, what was written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from callsheet.managers.sandbox.cgroups import GroupLayout, SandboxGroup, files

from tests.support.cgroups import FakeCgroups, install

_ALL = ("cpu", "cpuset", "memory", "pids")


@pytest.fixture
def written() -> list[str]:
    """The names of the files that were written."""
    return []


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: list[str]) -> FakeCgroups:
    """A tree whose writes are noted."""
    fake = FakeCgroups(tmp_path, *_ALL)
    (tmp_path / "cgroup.subtree_control").write_text(" ".join(_ALL))
    install(monkeypatch, fake)

    def note(path: Path, value: str) -> None:
        written.append(path.name)
        fake.write_setting(path, value)

    monkeypatch.setattr(files, "write_setting", note)
    return fake


@pytest.fixture
def group(fake: FakeCgroups, written: list[str]) -> Iterator[SandboxGroup]:
    """A new sandbox's; nothing is noted of its making."""
    made = SandboxGroup.make(GroupLayout(fake.root, dict.fromkeys(_ALL, fake.root)), "one", 256, 64)
    written.clear()
    yield made
    made.close()


def test_what_is_unchanged_is_not_written(group: SandboxGroup, written: list[str]) -> None:
    group.freeze(False)
    assert written == [], "it was never frozen"
    for _ in range(2):
        group.set_cores({0})
        assert written == ["cpuset.mems", "cpuset.cpus"]


def test_cores_that_could_not_be_given_are_written_again(
    group: SandboxGroup, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    group.set_cores({0})
    with monkeypatch.context() as broken:
        broken.setattr(files, "write_setting", lambda *_: (_ for _ in ()).throw(OSError(22, "no such core")))
        with pytest.raises(OSError, match="no such core"):
            group.set_cores({1})
    written.clear()
    group.set_cores({0})
    assert "cpuset.cpus" in written


def test_a_frozen_group_is_thawed_once_and_ready_after_it(group: SandboxGroup, written: list[str]) -> None:
    events = group.new_leaf().path.parent / "cgroup.events"
    events.write_text("populated 1\nfrozen 1\n")
    group.prepare_leaf()
    group.set_cores({0})
    assert group.is_ready(frozenset({0}))
    assert not group.is_ready(frozenset({1})), "its cores are others"
    written.clear()
    group.freeze(True)
    assert not group.is_ready(frozenset({0}))
    group.freeze(False)
    group.freeze(False)
    assert written == ["cgroup.freeze", "cgroup.freeze"]
    assert group.is_ready(None)
    assert group.take_leaf() is not None
    assert not group.is_ready(None), "the next command has no leaf"


def test_an_empty_leaf_serves_the_next_command(group: SandboxGroup, fake: FakeCgroups) -> None:
    leaf = group.new_leaf()
    assert group.give_back(leaf)
    assert group.take_leaf() is leaf
    assert group.take_leaf() is None
    (fake.root / "one/commands/cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert not group.give_back(leaf), "something is left inside"


def test_a_leaf_that_was_killed_stays_frozen_and_serves_nobody(
    group: SandboxGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaf = group.new_leaf()
    monkeypatch.setattr(files, "wait_for_event", lambda *_: True)
    leaf.kill()
    assert not group.give_back(leaf)


def test_counters_stay_open_and_tell_what_is_true_now(group: SandboxGroup, fake: FakeCgroups) -> None:
    assert fake.open_files() == []
    assert group.begin_measuring().process_limit == 0
    opened = fake.open_files()
    assert opened
    (fake.root / "one/pids.events").write_text("max 3\n")
    assert group.limit_events().process_limit == 3
    assert fake.open_files() == opened
    group.close()
    assert group.limit_events().process_limit == 3
    assert fake.open_files() == [], "what is read after the end is not kept"


def test_without_room_for_files_nothing_is_kept(
    group: SandboxGroup, fake: FakeCgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "KEPT_PART", 1 << 62)
    for _ in range(2):
        assert group.limit_events().out_of_memory == 0
    assert group.is_empty()
    assert fake.open_files() == []
