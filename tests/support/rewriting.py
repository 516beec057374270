"""A pytest plugin: the assertions of tests are rewritten once for all workers, and not by each of them.

pytest keeps what it rewrote, but in a fresh clone all workers start at the same time and find nothing kept.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Rewrites before the workers start, on each core a part."""
    if sys.dont_write_bytecode or not hasattr(os, "fork"):
        return
    files = sorted(set(_test_files(config)))
    cores = len(os.sched_getaffinity(0))
    with warnings.catch_warnings():
        # Later versions of Python warn where threads run. The children take none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        children = [_forked(config, files[place::cores]) for place in range(cores)]
    for child in children:
        os.waitpid(child, 0)


def _test_files(config: pytest.Config) -> Iterable[Path]:
    for argument in config.args:
        path = config.invocation_params.dir / argument.partition("::")[0]
        yield from path.rglob("test_*.py") if path.is_dir() else [path]


def _forked(config: pytest.Config, files: list[Path]) -> int:
    child = os.fork()
    if child == 0:
        # Whatever fails here fails in the workers as well, which tell of it.
        try:
            for file in files:
                _rewrite(config, file)
        finally:
            os._exit(0)
    return child


def _rewrite(config: pytest.Config, file: Path) -> None:
    """Does what pytest's own import of a test does, except for running it."""
    kept = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
    if rewrite.try_makedirs(kept.parent) and rewrite._read_pyc(file, kept) is None:
        told, code = rewrite._rewrite_test(file, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, told, kept)
