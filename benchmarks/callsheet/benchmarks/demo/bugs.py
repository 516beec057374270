"""Bugs that are known to be caught: which mutation of which function fails which test of its own package.

The list was made by running each package's whole suite on mutated source and keeping mutations that fail some tests but
not most. The demo proves each one again when it uses it: the agent's first run of `failing_test` must fail.
"""

from __future__ import annotations

from dataclasses import dataclass

from callsheet.benchmarks.demo.mutation import choose_mutation, find_mutations
from callsheet.benchmarks.demo.packages import SourceRelease


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


_INFLECTION = "inflection/__init__.py"
_VERSION = "src/semver/version.py"
_ITERTOOLZ = "toolz/itertoolz.py"
_ITERTOOLZ_TESTS = "toolz/tests/test_itertoolz.py"

BUGS = (
    Bug(
        "inflection",
        _INFLECTION,
        "camelize",
        1,
        "test_inflection.py::test_camelize_with_lower_downcases_the_first_letter",
    ),
    Bug("inflection", _INFLECTION, "ordinal", 2, "test_inflection.py::test_ordinal"),
    Bug("inflection", _INFLECTION, "titleize", 1, "test_inflection.py::test_titleize"),
    Bug("inflection", _INFLECTION, "humanize", 1, "test_inflection.py::test_humanize"),
    Bug("inflection", _INFLECTION, "pluralize", 1, "test_inflection.py::test_pluralize_singular"),
    Bug(
        "parse",
        "parse.py",
        "Parser._to_group_name",
        1,
        "tests/test_parse.py::test_hyphen_inside_field_name_collision_handling",
    ),
    Bug("parse", "parse.py", "Parser._handle_field", 2, "tests/test_parse.py::test_numbers"),
    Bug("parse", "parse.py", "Parser.search", 1, "tests/test_bugs.py::test_unused_left_alignment_bug"),
    Bug("parse", "parse.py", "ResultIterator.__next__", 1, "tests/test_findall.py::test_findall"),
    Bug("parse", "parse.py", "date_convert", 2, "tests/test_bugs.py::test_pm_overflow_issue16"),
    Bug(
        "semver",
        _VERSION,
        "Version.match",
        1,
        "tests/test_match.py::test_should_raise_value_error_for_invalid_match_expression",
    ),
    Bug("semver", _VERSION, "Version.__le__", 1, "tests/test_compare.py::test_should_compare_version_dictionaries"),
    Bug("semver", _VERSION, "Version.__ge__", 1, "tests/test_compare.py::test_should_compare_version_info_objects"),
    Bug(
        "semver",
        _VERSION,
        "Version.replace",
        1,
        "tests/test_replace.py::test_replace_raises_TypeError_for_invalid_keyword_arg",
    ),
    Bug(
        "semver",
        _VERSION,
        "Version.is_valid",
        1,
        "tests/test_pysemver-cli.py::test_should_process_check_iscalled_with_valid_version",
    ),
    Bug("toolz", _ITERTOOLZ, "getter", 1, f"{_ITERTOOLZ_TESTS}::test_getter"),
    Bug("toolz", _ITERTOOLZ, "_merge_sorted_binary_key", 1, f"{_ITERTOOLZ_TESTS}::test_merge_sorted"),
    Bug("toolz", _ITERTOOLZ, "isdistinct", 1, f"{_ITERTOOLZ_TESTS}::test_isdistinct"),
    Bug("toolz", "toolz/functoolz.py", "Compose.__init__", 1, "toolz/tests/test_functoolz.py::test_compose"),
    Bug("toolz", "toolz/dicttoolz.py", "update_in", 1, "toolz/tests/test_dicttoolz.py::TestDict::test_update_in"),
)


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
        DemoInputError: The release has no such file.
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
