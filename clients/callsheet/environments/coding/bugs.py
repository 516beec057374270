"""Bugs that are known to be caught: which mutation of which function fails which test of its own package.

The list, in bugs.csv, was made by running each package's whole suite on mutated source and keeping mutations that fail
some tests but not most. The demo proves each one again: its agent's first run of `failing_test` must fail.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib import resources

from callsheet.environments import coding
from callsheet.environments.coding.mutation import choose_mutation, find_mutations
from callsheet.environments.coding.packages import SourceRelease


@dataclass(frozen=True, slots=True)
class Bug:
    """A mutation and a test that catches it.

    Attributes:
        package: Name of the package.
        path: The mutated file, relative to the root of its source release.
        function: Qualified name of the mutated function.
        seed: Which of the function's mutations, see `choose_mutation`.
        failing_test: A test that fails with it and passes without, as pytest names it.
    """

    package: str
    path: str
    function: str
    seed: int
    failing_test: str


def _read_bugs() -> tuple[Bug, ...]:
    lines = resources.files(coding).joinpath("bugs.csv").read_text(encoding="utf-8").splitlines()
    rows = csv.reader(lines[1:])
    return tuple(Bug(package, path, function, int(seed), test) for package, path, function, seed, test in rows)


BUGS = _read_bugs()


@dataclass(frozen=True, slots=True)
class CodingTask:
    """A bug in its package, ready to be fixed.

    Attributes:
        bug: The bug.
        release: The source release it is in.
        source: The whole mutated file.
        line: The mutated line, from 1.
        fixed_line: That line without the bug.
        wrong_lines: Wrong fixes: the mutated line with one more mutation, or with a comment where it has no other.
    """

    bug: Bug
    release: SourceRelease
    source: str
    line: int
    fixed_line: str
    wrong_lines: tuple[str, ...]


def prepare_task(bug: Bug, release: SourceRelease) -> CodingTask:
    """Puts a bug into its source.

    Raises:
        MutationError: The function has nothing to mutate.
        SourceReleaseError: The release has no such file.
    """
    source = release.read(bug.path)
    mutation = choose_mutation(source, bug.seed, {bug.function})
    mutated = mutation.apply(source)
    index = mutation.line - 1
    fixed = source.split("\n")[index]
    wrong = {
        other.apply(mutated).split("\n")[index]
        for other in find_mutations(mutated, {bug.function})
        if other.line == mutation.line
    }
    wrong_lines = tuple(sorted(wrong - {fixed})) or (mutated.split("\n")[index] + "  # this looks right",)
    return CodingTask(bug, release, mutated, mutation.line, fixed, wrong_lines)
