"""A pytest plugin: what repeats much of other tests is left to `make nightly`, but for a sample of it.

By day the tests of sandboxes run in full with control groups where they are isolated, and without where they are not.
Other variants, and what an unprivileged user repeats, run each test as well, with the first of its other parameters.
The rest of these, and what is marked `nightly`, is run by tests/soak/test_all_in_full.py.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator

import pytest

from tests.support.other_user import OTHER_UID


def is_nightly() -> bool:
    """Whether everything has its full size."""
    return os.environ.get("CALLSHEET_NIGHTLY") == "1"


def examples(night: int) -> int:
    """How many of some random examples or faults are tried: `night` of them in the night, and half by day."""
    return night if is_nightly() else night // 2


def sampled(values: Iterable[object], *, by_day: Collection[object]) -> list[object]:
    """Returns parameters of a test, of which those that are not in `by_day` are left to the night."""
    return [each if each in by_day else pytest.param(each, marks=pytest.mark.nightly) for each in values]


def _other_variant(item: pytest.Item) -> str:
    """Returns the kind of sandbox of a test if it does not run in full by day; otherwise nothing."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return next((str(each) for each in parameters.values() if not getattr(each, "by_day", True)), "")


def _beyond_sample(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    seen = set()
    for item in items:
        if kind := _other_variant(item):
            test = (item.nodeid.partition("[")[0], kind)
            if test in seen:
                yield item
            seen.add(test)


def _run_in_full_otherwise() -> bool:
    from callsheet.managers.sandbox.cgroups import probe_layout  # takes a while, which most runs save

    return os.geteuid() == OTHER_UID or probe_layout() is not None


@pytest.hookimpl(tryfirst=True)  # `-m nightly` sees the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what is beyond the sample, and deselects what is left to the night."""
    beyond = list(_beyond_sample(items))
    if beyond and _run_in_full_otherwise():
        for item in beyond:
            item.add_marker(pytest.mark.nightly)
    left = [item for item in items if item.get_closest_marker("nightly")]
    if left and not is_nightly():
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
