"""What forbids user namespaces is told by the setting's name, behind which bubblewrap's own words stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from callsheet.managers.sandbox.walls.user_namespaces import forbidden_namespaces

SAID = "bwrap: No permissions to create new namespace"


def _set(root: Path, name: str, value: str) -> None:
    path = root / "proc/sys" / name.replace(".", "/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


@pytest.mark.parametrize(
    ("name", "forbids", "allows"),
    [
        ("user.max_user_namespaces", "0", "65536"),
        ("user.max_net_namespaces", "0", "65536"),
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ],
)
def test_the_setting_its_value_and_the_cure(tmp_path: Path, name: str, forbids: str, allows: str) -> None:
    _set(tmp_path, name, forbids)
    told = forbidden_namespaces(SAID, tmp_path)
    assert f"{name} is {forbids}; as root, `sysctl -w {name}={allows}` allows them" in told
    assert told.endswith(f"({SAID})")
    _set(tmp_path, name, allows)
    assert forbidden_namespaces(SAID, tmp_path) == SAID


def test_several_settings_are_all_named(tmp_path: Path) -> None:
    _set(tmp_path, "kernel.apparmor_restrict_unprivileged_userns", "1")
    _set(tmp_path, "user.max_user_namespaces", "0")
    told = forbidden_namespaces(SAID, tmp_path)
    assert "max_user_namespaces is 0" in told
    assert "a profile of AppArmor for bwrap" in told


def test_the_words_of_other_programs_blame_no_setting(tmp_path: Path) -> None:
    _set(tmp_path, "user.max_user_namespaces", "0")
    assert forbidden_namespaces("there is no python3", tmp_path) == "there is no python3"
    assert forbidden_namespaces("", tmp_path) == ""
