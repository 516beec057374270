"""Dockerfiles as buildah takes them: without heredocs."""

from __future__ import annotations

import json

import pytest
from callsheet.managers.sandbox.files.images.dockerfiles import rewrite
from callsheet.managers.sandbox.files.images.errors import ImageBuildError


def rewritten(text: str) -> list[str]:
    return rewrite(text, "A=1")[0].splitlines()


@pytest.mark.parametrize(
    "text",
    [
        "# escape=`\nRUN echo `\n\n# RUN <<EOF\n  b",
        "FROM r.example/a:1 AS b\nARG A=1\nFROM b\nARG A=1\nCOPY --from=b . /\nCOPY --from=0 . /",
        "RUN cat <<<text",
        'RUN echo "a <<EOF b"',
        "RUN echo 'a <<EOF b'",
        "RUN echo it's <b",
        "RUN echo $((1<<2))",
        "CMD cat <<EOF",
        "COPY a b /c/",
        "# RUN <<EOF",
        "RUN true \\",
        "",
    ],
)
def test_what_is_no_heredoc_stays_as_it_is(text: str) -> None:
    assert rewritten(text.replace("\nARG A=1", "")) == text.splitlines()


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("FROM python:3.11-slim", "FROM r:5/python:3.11-slim"),
        ("from --platform=linux/amd64 python as Base", "from --platform=linux/amd64 r:5/python:latest as base"),
        ("FROM \\\n  team/task \\\n  AS x", "FROM r:5/team/task:latest AS x"),
        ("FROM other.example/a@sha256:" + "0" * 64, "FROM other.example/a@sha256:" + "0" * 64),
        ("FROM python", "FROM docker.io/library/python:latest"),
        ("FROM scratch", "FROM scratch"),
        ("ARG V=3.11 BASE='debian'\nFROM python:${V}", "FROM r:5/python:3.12"),
        ("ARG V=3.11 BASE='debian'\nFROM $BASE", "FROM r:5/debian:latest"),
        ("FROM ${UNKNOWN}", "FROM ${UNKNOWN}"),
        ("FROM No.Such", "FROM No.Such"),
        ("FROM a AS Build\nFROM BUILD", "FROM build"),
        ("FROM a AS Build\nFROM b\nCOPY --chown=1 --from=BUILD /a /b", "COPY --chown=1 --from=build /a /b"),
        ("FROM a\nCOPY --from=busybox /from=x /b", "COPY --from=r:5/busybox:latest /from=x /b"),
        ("FROM a\nRUN --mount=type=bind,from=tools,target=/t ls", None),
        ("FROM a AS python\nFROM python", "FROM python"),
    ],
)
def test_names_of_images_are_whole_and_stages_have_one_case(written: str, line: str | None) -> None:
    registry = "docker.io" if line == "FROM docker.io/library/python:latest" else "r:5"
    lines = rewrite(written, "A=1", registry, {"V": "3.12"})[0].splitlines()
    wanted = "RUN --mount=type=bind,from=r:5/tools:latest,target=/t ls" if line is None else line
    assert wanted in {lines[-1], lines[-2]}


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("RUN <<EOF\necho a\necho b\nEOF", ["/bin/sh", "-c", "echo a\necho b\n"]),
        ("RUN <<-'EOF'\n\t\techo a\n\tEOF", ["/bin/sh", "-c", "echo a\n"]),
        ("RUN <<EOF\r\necho a\r\nEOF\r", ["/bin/sh", "-c", "echo a\n"]),
        ("RUN cat <<A >/a && cat <<B >/b\n1\nA\n2\nB", ["/bin/sh", "-c", "cat <<A >/a && cat <<B >/b\n1\nA\n2\nB\n"]),
        (
            "run set -e; \\\n  python3 <<EOF\nprint(1)\nEOF",
            ["/bin/sh", "-c", "set -e;   python3 <<EOF\nprint(1)\nEOF\n"],
        ),
        ('SHELL ["/bin/bash", "-ec"]\nRUN <<EOF\na\nEOF', ["/bin/bash", "-ec", "a\n"]),
        ('SHELL ["/bin/bash", "-ec"]\nFROM b\nRUN <<EOF\na\nEOF', ["/bin/sh", "-c", "a\n"]),
        (
            "RUN <<EOF\n\N{GREEK SMALL LETTER ALPHA} \\\nEOF",
            ["/bin/sh", "-c", "\N{GREEK SMALL LETTER ALPHA} \\\n"],
        ),
    ],
)
def test_a_heredoc_of_run_is_read_by_the_shell(written: str, words: list[str]) -> None:
    *_, line, last = rewritten(f"FROM scratch\n{written}\nWORKDIR /")
    assert json.loads(line.removeprefix("RUN ")) == words
    assert last == "WORKDIR /"


def test_a_heredoc_that_names_its_interpreter_is_run_by_it() -> None:
    line = rewritten("RUN --network=none <<EOF\n#!/usr/bin/env python3\nprint('a')\nEOF")[0]
    assert line.startswith("RUN --network=none [")
    assert json.loads(line.partition("none ")[2])[-1] == "#!/usr/bin/env python3\nprint('a')\n"


def test_copied_heredocs_come_from_a_context_of_their_own() -> None:
    text, files, _ = rewrite("COPY --chmod=755 <<one <<'two' /d/\na\none\n$b\ntwo\nADD <<-x /e\n\tc\n\tx\n", "A=1")
    assert text.splitlines() == [
        "COPY --from=callsheet-heredocs --chmod=755 0/one 1/two /d/",
        "COPY --from=callsheet-heredocs 2/x /e",
    ]
    assert files == {"0/one": "a\n", "1/two": "$b\n", "2/x": "c\n"}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("COPY <<a /b\n$c\na", "the heredoc a has variables"),
        ("COPY <<a c /b\nd\na", "must have heredocs alone"),
        ("COPY <<a /b\nd\n", "the heredoc a has no end"),
        ("RUN <<a\nb", "the heredoc a has no end"),
    ],
)
def test_a_heredoc_that_cannot_be_rewritten_is_named(written: str, said: str) -> None:
    with pytest.raises(ImageBuildError, match=said):
        rewrite(written, "A=1")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ARG A", "ARG A='it'\"'\"'s $1'"),
        ('ARG A=1 B C="x y"', "ARG A='it'\"'\"'s $1' B=2 C=\"x y\""),
        ("ARG \\\n  A=1", "ARG A='it'\"'\"'s $1'"),
        ("arg D=A", "arg D=A"),
        ("RUN echo ARG A=1", "RUN echo ARG A=1"),
        ("FROM r/a", "FROM r:5/r/a:latest\nARG X=1\nARG no_proxy='a b'"),
    ],
)
def test_values_of_arguments_are_written_where_they_hold(line: str, expected: str) -> None:
    given = {"A": "it's $1", "B": "2", "no_proxy": "a b", "UNUSED": "$(x)"}
    assert rewrite(f"{line}\nRUN x", "X=1", "r:5", given).text == f"{expected}\nRUN x"


@pytest.mark.parametrize("value", ["a\nRUN b", "\r", "\0"])
def test_values_that_would_be_lines_are_refused(value: str) -> None:
    with pytest.raises(ImageBuildError, match="argument NAME: must be one line"):
        rewrite("FROM a", "X=1", arguments={"NAME": value})


def test_the_images_that_a_dockerfile_names_are_known() -> None:
    text = """ARG BASE
FROM ${BASE:-debian} AS one
FROM one AS two
COPY --from=tools:1 /a /b
RUN --mount=type=bind,from=two,target=/t --mount=type=cache,from=caches,target=/c <<EOF
FROM none
EOF
FROM scratch
"""
    assert rewrite(text, "X=1", "r:5").images == ("r:5/debian:latest", "r:5/tools:1", "r:5/caches:latest")
    assert rewrite(text, "X=1", "r:5", {"BASE": "other"}).images[0] == "r:5/other:latest"
