"""Mutations: what each operator does to a line of source."""

from __future__ import annotations

import pytest
from callsheet.environments.coding.mutation import MutationError, MutationOperator, choose_mutation, find_mutations


def mutants(body: str) -> dict[str, str]:
    """The mutated body of a one-line function, by operator name (the last one where there are several)."""
    source = f"def function(a, b, c):\n    {body}\n"
    return {
        mutation.operator.name: mutation.apply(source).split("\n")[1].strip() for mutation in find_mutations(source)
    }


@pytest.mark.parametrize(
    ("body", "operator", "expected"),
    [
        ("return a < b", "COMPARISON", "return a <= b"),
        ("return a >= b", "COMPARISON", "return a > b"),
        ("return a not in b", "COMPARISON", "return a in b"),
        ("return (a) is (b)", "COMPARISON", "return (a) is not (b)"),
        ("return a + b", "ARITHMETIC", "return a - b"),
        ("return (a)  //  (b)", "ARITHMETIC", "return (a)  *  (b)"),
        ("return a[b:7]", "OFF_BY_ONE", "return a[b:8]"),
        ("return a and b", "BOOLEAN", "return a or b"),
        ("return not a", "NEGATION", "return a"),
        ("return not(a == b)", "NEGATION", "return (a == b)"),
        ("return True", "RETURN_TRUTH", "return False"),
        ("return a, b", "RETURN_SWAP", "return b, a"),
        ("é = 'ü' * 3; return é", "OFF_BY_ONE", "é = 'ü' * 4; return é"),
    ],
)
def test_each_operator_changes_its_token_only(body: str, operator: str, expected: str) -> None:
    assert mutants(body)[operator] == expected


@pytest.mark.parametrize(
    "body",
    [
        "return 'x %s' % a",  # formatting, not arithmetic
        "return a < b < c",  # chained
        "return a, a",  # a swap that changes nothing
        "return f'{a + 1}'",  # positions inside f-strings differ between versions of Python
        "x: a < b",  # an annotation
        "return 0x10, *a",
        "return a",
    ],
)
def test_what_is_left_alone(body: str) -> None:
    assert mutants(body) == {}


def test_a_splice_that_would_regroup_the_line_is_no_mutation() -> None:
    # "a * b % c" with + for * would parse as a + (b % c).
    assert "return a + b % c" not in mutants("return a * b % c").values()
    assert "return a or b and c" not in mutants("return a or b and c").values()


def test_functions_are_named_by_their_qualified_names() -> None:
    source = "class A:\n  def f(self):\n    def g():\n      return 1\n    return 2\n\ndef f():\n  return 3\n"
    assert {mutation.function: mutation.line for mutation in find_mutations(source)} == {"A.f": 5, "A.f.g": 4, "f": 8}
    assert [mutation.line for mutation in find_mutations(source, {"f"})] == [8]


def test_the_seed_decides() -> None:
    source = "def f(a):\n    return a[0] + a[1] - a[2] * a[3] < 9\n"
    drawn = {seed: choose_mutation(source, seed) for seed in range(50)}
    assert drawn == {seed: choose_mutation(source, seed) for seed in range(50)}
    assert len(set(drawn.values())) > 3


def test_bad_sources_are_refused() -> None:
    with pytest.raises(MutationError, match="does not parse"):
        find_mutations("def f(:\n")
    with pytest.raises(MutationError, match="line ends"):
        find_mutations("def f():\r\n    return 1\r\n")
    with pytest.raises(MutationError, match="nothing to mutate"):
        choose_mutation("def f():\n    return 1\n", 0, {"g"})


def test_a_mutation_refuses_another_source() -> None:
    source = "def f():\n    return 1\n"
    (mutation,) = find_mutations(source)
    assert mutation.operator is MutationOperator.OFF_BY_ONE
    with pytest.raises(MutationError, match="line 2: expected '1'"):
        mutation.apply("def f():\n    return 2\n")
