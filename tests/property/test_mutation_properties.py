"""Mutations of any source: one line of text, one node of the tree, and nothing else."""

from __future__ import annotations

import ast
import bisect
import inspect
import textwrap
import types

from callsheet.environments.coding import mutation as mutation_module
from callsheet.environments.coding.mutation import changed_nodes, choose_mutation, find_mutations
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.samples import examples

LIBRARY: list[types.ModuleType] = [bisect, textwrap, types, mutation_module]
"""Real sources, from Python's own library."""

names = st.sampled_from(["a", "b", "é", "items[0]", "7", "f(a)", "(a)", "'ü'"])
binary = st.sampled_from(["+", "-", "*", "//", "%", "<", ">=", "==", "in", "not in", "is", "and", "or"])


@st.composite
def expressions(draw: st.DrawFn) -> str:
    text = draw(names)
    for _ in range(draw(st.integers(0, 4))):
        right = draw(st.sampled_from(["", "not "])) + draw(names)
        text = draw(st.sampled_from(["{} {} {}", "({} {} {})", "{}  {} {}"])).format(
            text, draw(binary), f"({right})" if right.startswith("not") else right
        )
    return text


@st.composite
def sources(draw: st.DrawFn) -> str:
    lines = ["# ü comment"]
    for number in range(draw(st.integers(1, 4))):
        lines += [f"class C{number}:", "    @staticmethod", f"    def function{number}(a, b, items, é, f):"]
        lines += [
            f"        a = {draw(expressions())}",
            f"        return {draw(expressions())}, {draw(expressions())}",
            "",
        ]
    return "\n".join(lines)


def check(source: str) -> None:
    for mutation in find_mutations(source):
        mutated = mutation.apply(source)
        before, after = source.split("\n"), mutated.split("\n")
        assert len(before) == len(after)
        assert [n for n, (x, y) in enumerate(zip(before, after, strict=True), 1) if x != y] == [mutation.line]
        assert len(changed_nodes(ast.parse(source), ast.parse(mutated))) == 1


@given(sources())
@settings(max_examples=examples(60))
def test_a_mutation_changes_one_line_and_one_node(source: str) -> None:
    check(source)


@given(st.sampled_from(LIBRARY), st.integers(0, 2**32))
@settings(max_examples=examples(20))
def test_so_it_does_in_real_source(module: types.ModuleType, seed: int) -> None:
    source = inspect.getsource(module).replace("\f", "")
    mutation = choose_mutation(source, seed)
    assert mutation == choose_mutation(source, seed)
    mutated = mutation.apply(source)
    assert len(changed_nodes(ast.parse(source), ast.parse(mutated))) == 1
    assert sum(x != y for x, y in zip(source.split("\n"), mutated.split("\n"), strict=True)) == 1


@given(sources())
@settings(max_examples=examples(30))
def test_a_tree_does_not_differ_from_itself(source: str) -> None:
    assert changed_nodes(ast.parse(source), ast.parse(source)) == []
