"""The lock is fitted to whichever torch is installed."""

from __future__ import annotations

import pytest

from scripts.set_up import constraints, uv_arguments

LOCK = "filelock==4.2.11\nnumpy==2.4.6\nsympy==1.14.0\ntorch==2.13.0\ntyping-extensions==4.16.0\n"


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu"])
def test_any_build_of_the_locked_version_leaves_the_lock_alone(version: str) -> None:
    assert constraints(LOCK, [version, "sympy>=1.13.3"]) == LOCK


def test_another_torch_is_pinned_and_its_requirements_are_freed() -> None:
    requires = ["filelock", "typing_extensions>=4.10.0", "sympy==1.13.1; python_version >= '3.9'", ""]
    assert constraints(LOCK, ["2.6.0+cu124", *requires]) == "numpy==2.4.6\ntorch==2.6.0+cu124\n"


def test_settings_of_pip_are_handed_to_uv() -> None:
    settings = {"index-url": "https://a/simple", "extra-index-url": "https://b/simple  file:///c", "find-links": "/w"}
    assert uv_arguments(settings | {"timeout": "9", "constraint": "/k.txt", "no-index": "false"}) == [
        *("--default-index", "https://a/simple", "--index", "https://b/simple", "--index", "file:///c"),
        *("--find-links", "/w", "--constraint", "/k.txt", "--index-strategy", "unsafe-best-match"),
    ]
    assert uv_arguments({"no-index": "1"}) == ["--no-index", "--index-strategy", "unsafe-best-match"]
