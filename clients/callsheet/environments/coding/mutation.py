"""Bugs for coding tasks: small mutations of Python source, found by its syntax tree and spliced into its text.

A mutation replaces one node of the tree and touches one line of the text, so that the bug, and its fix, read like an
edit a person could have made. Mutating is pure: a seed is a parameter.

The bugs in bugs.csv are known to be caught: which mutation of which function fails which test of its own package. The
list was made by running each package's whole suite on mutated source and keeping mutations that fail some tests but not
most. The demo proves each one again: its agent's first run of `failing_test` must fail.
"""

from __future__ import annotations

import ast
import csv
import random
import re
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import resources
from typing import Any

from callsheet.environments import coding
from callsheet.environments.coding.packages import SourceRelease

_COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_ARITHMETIC = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.Mod: "+",
}

# Environments are made in threads, and Python 3.11 counts the depth of one tree for all of them: SystemError.
_PARSING = threading.Lock()

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class MutationOperator(Enum):
    """The kind of change that a mutation makes."""

    ARITHMETIC = "arithmetic operator"
    COMPARISON = "comparison"
    OFF_BY_ONE = "integer constant off by one"
    BOOLEAN = "boolean connective"
    NEGATION = "removed not"
    RETURN_TRUTH = "returned truth value"
    RETURN_SWAP = "swapped returned pair"


class MutationError(ValueError):
    """The source cannot be mutated as asked."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one line.

    Attributes:
        operator: What it changes.
        function: Qualified name of the function it is in.
        line: Line number, from 1.
        start: First changed character of the source.
        end: The character after the last changed one.
        original: The text that is replaced.
        replacement: The text that replaces it.
    """

    operator: MutationOperator
    function: str
    line: int
    start: int
    end: int
    original: str
    replacement: str

    def apply(self, source: str) -> str:
        """Returns the mutated source.

        Raises:
            MutationError: `source` is not the source this mutation was found in.
        """
        found = source[self.start : self.end]
        if found != self.original:
            raise MutationError(f"line {self.line}: expected {self.original!r}, found {found!r}")
        return source[: self.start] + self.replacement + source[self.end :]


class _Text:
    """Source text addressed by the positions of syntax-tree nodes, which count UTF-8 bytes within a line."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = source.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.expr) -> tuple[int, int]:
        return self.offset(node.lineno, node.col_offset), self.end(node)

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None  # ast.parse always sets both
        assert node.end_col_offset is not None
        return self.offset(node.end_lineno, node.end_col_offset)

    def between(self, left: ast.expr, right: ast.expr) -> tuple[int, int]:
        """The operator between two operands, without parentheses and spaces around it."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.source[start:end]
        stripped = gap.strip(" \t\n\\()")
        start += gap.index(stripped)
        return start, start + len(stripped)


Site = tuple[MutationOperator, int, int, str]
"""An operator, the characters it replaces, and the replacement."""


def _compare_sites(node: ast.Compare, text: _Text) -> Iterator[Site]:
    if len(node.ops) == 1:
        start, end = text.between(node.left, node.comparators[0])
        yield MutationOperator.COMPARISON, start, end, _COMPARISONS[type(node.ops[0])]


def _arithmetic_sites(node: ast.BinOp, text: _Text) -> Iterator[Site]:
    is_formatting = isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant | ast.JoinedStr)
    if type(node.op) in _ARITHMETIC and not is_formatting:
        start, end = text.between(node.left, node.right)
        yield MutationOperator.ARITHMETIC, start, end, _ARITHMETIC[type(node.op)]


def _boolean_sites(node: ast.BoolOp, text: _Text) -> Iterator[Site]:
    # With a parent of the other connective the new node would merge with it or bind differently.
    if len(node.values) == 2 and not any(isinstance(value, ast.BoolOp) for value in node.values):
        start, end = text.between(node.values[0], node.values[1])
        yield MutationOperator.BOOLEAN, start, end, "or" if isinstance(node.op, ast.And) else "and"


def _negation_sites(node: ast.UnaryOp, text: _Text) -> Iterator[Site]:
    if isinstance(node.op, ast.Not):
        start = text.span(node)[0]
        match = re.compile(r"not[ \t]*").match(text.source, start)
        assert match is not None  # the node starts with its operator
        yield MutationOperator.NEGATION, start, match.end(), ""


def _constant_sites(node: ast.Constant, text: _Text) -> Iterator[Site]:
    start, end = text.span(node)
    if type(node.value) is int and text.source[start:end] == str(node.value):
        yield MutationOperator.OFF_BY_ONE, start, end, str(node.value + 1)


def _return_sites(node: ast.Return, text: _Text) -> Iterator[Site]:
    value = node.value
    if isinstance(value, ast.Constant) and isinstance(value.value, bool):
        yield MutationOperator.RETURN_TRUTH, *text.span(value), str(not value.value)
    elif isinstance(value, ast.Tuple) and len(value.elts) == 2 and not _has_starred(value):
        (start, first_end), (second_start, end) = text.span(value.elts[0]), text.span(value.elts[1])
        source = text.source
        swapped = source[second_start:end] + source[first_end:second_start] + source[start:first_end]
        if swapped != source[start:end]:
            yield MutationOperator.RETURN_SWAP, start, end, swapped


def _parsed(source: str) -> ast.Module:
    with _PARSING:
        return ast.parse(source)


def _has_starred(value: ast.Tuple) -> bool:
    return any(isinstance(element, ast.Starred) for element in value.elts)


_SITES: dict[type[ast.AST], Callable[[Any, _Text], Iterator[Site]]] = {
    ast.Compare: _compare_sites,
    ast.BinOp: _arithmetic_sites,
    ast.BoolOp: _boolean_sites,
    ast.UnaryOp: _negation_sites,
    ast.Constant: _constant_sites,
    ast.Return: _return_sites,
}


def _with_descendants(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those below it, without nested functions and classes, annotations, f-strings and patterns."""
    if isinstance(node, _Function | ast.ClassDef | ast.JoinedStr | ast.pattern):
        return
    yield node
    children = [node.value] if isinstance(node, ast.AnnAssign) else ast.iter_child_nodes(node)
    for child in children:
        if child is not None:
            yield from _with_descendants(child)


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Function | ast.ClassDef):
            name = prefix + child.name
            if isinstance(child, _Function):
                yield name, child
            yield from _functions(child, name + ".")
        else:
            yield from _functions(child, prefix)


def _function_mutations(name: str, function: _Function, text: _Text) -> Iterator[Mutation]:
    alone = _FunctionAlone(function, text)
    for statement in function.body:
        for node in _with_descendants(statement):
            for operator, start, end, replacement in _SITES[type(node)](node, text) if type(node) in _SITES else ():
                line = text.source.count("\n", 0, start) + 1
                mutation = Mutation(operator, name, line, start, end, text.source[start:end], replacement)
                if alone.changes_one_node(mutation):
                    yield mutation


class _FunctionAlone:
    """One function cut out of its source, so that a mutation is checked without parsing the whole file again."""

    def __init__(self, function: _Function, text: _Text) -> None:
        self._start = text.offset(function.lineno, function.col_offset)
        self._source = text.source[self._start : text.end(function)]
        self._head = "if True:\n" + " " * function.col_offset if function.col_offset else ""
        self._tree = _parsed(self._head + self._source)

    def changes_one_node(self, mutation: Mutation) -> bool:
        """Returns whether the mutation stays on its line, parses, and leaves every node but one as it was.

        Precedence can turn a plain splice into more: ``a * b % c`` with ``+`` for ``*`` regroups the rest.
        """
        if "\n" in mutation.original or "\n" in mutation.replacement:
            return False
        start, end = mutation.start - self._start, mutation.end - self._start
        try:
            mutated = _parsed(self._head + self._source[:start] + mutation.replacement + self._source[end:])
        except SyntaxError:
            return False
        return len(changed_nodes(self._tree, mutated)) == 1


def changed_nodes(before: ast.AST, after: ast.AST) -> list[ast.AST]:
    """Compares two trees in lockstep.

    Returns:
        The smallest nodes of `before` that are not the same in `after`. A tuple whose elements changed places is one.
    """
    if type(before) is not type(after):
        return [before]
    if isinstance(before, ast.Tuple) and isinstance(after, ast.Tuple) and _is_reordered(before.elts, after.elts):
        return [before]
    changed: list[ast.AST] = []
    is_itself_changed = False
    for name in before._fields:
        old, new = _items(getattr(before, name, None)), _items(getattr(after, name, None))
        is_itself_changed |= len(old) != len(new)
        for old_item, new_item in zip(old, new, strict=False):
            if isinstance(old_item, ast.AST) and isinstance(new_item, ast.AST):
                changed.extend(changed_nodes(old_item, new_item))
            else:
                is_itself_changed |= old_item != new_item
    return [before, *changed] if is_itself_changed else changed


def _items(field: object) -> list[object]:
    return field if isinstance(field, list) else [field]


def _is_reordered(old: list[ast.expr], new: list[ast.expr]) -> bool:
    old_dumps, new_dumps = [ast.dump(node) for node in old], [ast.dump(node) for node in new]
    return old_dumps != new_dumps and sorted(old_dumps) == sorted(new_dumps)


def find_mutations(source: str, functions: Collection[str] | None = None) -> tuple[Mutation, ...]:
    """Finds every mutation of a source text.

    Args:
        source: Python source with ``\n`` line ends.
        functions: Qualified names of the functions to mutate; None means all.

    Returns:
        The mutations in the order of their place in the text; the same for every Python version that parses it alike.

    Raises:
        MutationError: The source does not parse, or has other line ends.
    """
    if "\r" in source or "\f" in source:
        raise MutationError("source: line ends must be \\n alone, without form feeds")
    try:
        tree = _parsed(source)
    except SyntaxError as error:
        raise MutationError(f"source: does not parse: {error}") from error
    text = _Text(source)
    found = [
        mutation
        for name, function in _functions(tree)
        if functions is None or name in functions
        for mutation in _function_mutations(name, function, text)
    ]
    return tuple(sorted(found, key=lambda mutation: (mutation.start, mutation.end, mutation.replacement)))


def choose_mutation(source: str, seed: int, functions: Collection[str] | None = None) -> Mutation:
    """Draws one of the mutations of a source text.

    Args:
        source: Python source with ``\n`` line ends.
        seed: The same seed and source give the same mutation.
        functions: Qualified names of the functions to mutate; None means all.

    Raises:
        MutationError: There is nothing to mutate, or `find_mutations` refuses the source.
    """
    mutations = find_mutations(source, functions)
    if not mutations:
        raise MutationError(f"nothing to mutate in {'any function' if functions is None else sorted(functions)}")
    return random.Random(seed).choice(mutations)


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
