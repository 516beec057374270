"""Dockerfiles as buildah takes them: with whole names of images and values of arguments, and without heredocs. Pure.

Late versions alone read heredocs. A short name may be given an image of another repository that buildah's storage has,
or one that the machine's own files name. Stages are told apart by case there, and not in Docker.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from callsheet.managers.sandbox.files.images.errors import ImageBuildError, ImageError
from callsheet.managers.sandbox.files.images.references import read_reference
from callsheet.managers.sandbox.registry_settings import DOCKER_HUB

HEREDOCS = "callsheet-heredocs"
"""Name of the build's further context, which has the files of heredocs."""
_ESCAPE = re.compile(r"#\s*escape\s*=\s*(\S)\s*", re.IGNORECASE)
# What is in quotes is none.
_HEREDOC = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.?)*"?|(?<!\S)(\d{0,9}<<(-?)(['"]?)([^<'"\s]+)\3)(?!\S)""")
_FROM = re.compile(r"(?<=\bfrom=)[^\s,]+")
_NAMING_FLAG = re.compile(r"(?<!\S)--(?:from=|mount=)\S+")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^{}]*))?\})")
# Those that hold without an ARG.
_PREDEFINED = re.compile(r"(?:https?|ftp|all|no)_proxy", re.IGNORECASE)
_ARGUMENT = re.compile(r"""(\w+)(?:=("[^"]*"|'[^']*'|\S*))?""")
_FLAGS = re.compile(r"\A(?:--\S+\s+)*")
_IN_QUOTES = re.compile(r'"([^"]*)"')
_SHELL = ("/bin/sh", "-c")
_NO_ARGUMENTS: Mapping[str, str] = {}
_AS_PROGRAM = 'f=/tmp/.callsheet-heredoc; printf %s "$1" >$f && chmod 755 $f && $f; code=$?; rm -f $f; exit $code'


class Rewritten(NamedTuple):
    """A Dockerfile for buildah: its text, the files that it copies from `HEREDOCS`, and the images that it names."""

    text: str
    files: dict[str, str]
    images: tuple[str, ...]


class _Heredoc(NamedTuple):
    """One: its word, its name, whether variables in it are left alone, and its lines."""

    word: str
    name: str
    quoted: bool
    text: str


class _Images:
    """Meanings of names of images: stages, or images whose names are made whole."""

    def __init__(self, short_names_at: str, arguments: Mapping[str, str]) -> None:
        self._short_names_at = short_names_at
        self._arguments = arguments
        self._values: dict[str, str] = {}
        self._stages = {"scratch", HEREDOCS}
        self.named: dict[str, None] = {}

    def take_arguments(self, after: str) -> None:
        """Notes the values of an ARG before the first FROM."""
        for name, value in _ARGUMENT.findall(after):
            self._values[name] = self._arguments.get(name, value.strip("'\""))

    def of_stage(self, after: str) -> str:
        """Returns what stands after FROM, and notes the stage that it begins."""
        command = _FLAGS.sub("", after, count=1)
        image, *named = command.split() or [""]
        if named:
            named[-1] = named[-1].lower()
        value = _VARIABLE.sub(self._value, image)
        whole = self.whole(value)
        self._stages.update(named[-1:])
        return " ".join([f"{after.removesuffix(command)}{whole}", *named])

    def whole(self, name: str) -> str:
        """Returns a name in full; one that is none is left to buildah, which says so."""
        if name.isdecimal() or name.lower() in self._stages:
            return name.lower()
        try:
            whole = str(read_reference(name, self._short_names_at))
        except ImageError:
            return name
        self.named[whole] = None
        return whole

    def _value(self, found: re.Match[str]) -> str:
        value = self._values.get(found[1] or found[2])
        if found[3] is not None:
            return value or found[3]
        return found[0] if value is None else value


def rewrite(
    text: str, stage_argument: str, short_names_at: str = DOCKER_HUB, arguments: Mapping[str, str] = _NO_ARGUMENTS
) -> Rewritten:
    """Returns a Dockerfile with whole names, with values in the place of the arguments' own, and without heredocs.

    Args:
        text: The Dockerfile.
        stage_argument: An ARG that each stage begins with.
        short_names_at: The registry of images that are named without one.
        arguments: Values of the build's arguments. They stand in no command line, which all users of a machine read.

    Raises:
        ImageBuildError: A heredoc cannot be rewritten, or a value does not fit into a line.
    """
    for name, value in arguments.items():
        if set(value) & set("\n\r\0"):
            raise _refused(f"its argument {name}: must be one line")
    proxies = {name: value for name, value in arguments.items() if _PREDEFINED.fullmatch(name)}
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    found = _ESCAPE.fullmatch(lines[0].strip())
    written, files, rest = list[str](), dict[str, str](), iter(lines)
    images, in_stage = _Images(short_names_at, arguments), False
    shell: Sequence[str] = _SHELL
    for line in rest:
        source = [line]
        name, *words = _joined(source, rest, found[1] if found else "\\").split(maxsplit=1) or [""]
        after = "".join(words)
        if name.upper() == "FROM":
            shell, in_stage = _SHELL, True
            source = [f"{name} {images.of_stage(after)}", f"ARG {stage_argument}"]
            source += [f"ARG {_with_values(each, proxies)}" for each in proxies]
        elif name.upper() == "ARG":
            if not in_stage:
                images.take_arguments(after)
            source = [f"{name} {_with_values(after, arguments)}"] if arguments else source
        elif name.upper() == "SHELL":
            shell = _IN_QUOTES.findall(after)
        elif name.upper() in {"ADD", "COPY", "RUN"}:
            source = [_with_whole_names(each, images) for each in source]
            if heredocs := list(_heredocs(after, rest)):
                flagged = _with_whole_names(after, images)
                source = [_run(flagged, heredocs, shell) if name.upper() == "RUN" else _copy(after, heredocs, files)]
        written += source
    return Rewritten("\n".join(written), files, tuple(images.named))


def _with_values(after: str, arguments: Mapping[str, str]) -> str:
    """Returns what stands after ARG, with the values that are given."""
    return _ARGUMENT.sub(
        lambda found: f"{found[1]}={shlex.quote(arguments[found[1]])}" if found[1] in arguments else found[0], after
    )


def _with_whole_names(text: str, images: _Images) -> str:
    """Returns an instruction, or a line of one, with whole names of images in its flags."""
    return _NAMING_FLAG.sub(lambda found: _FROM.sub(lambda name: images.whole(name[0]), found[0]), text)


def _joined(source: list[str], rest: Iterator[str], escape: str) -> str:
    """Returns an instruction in one line; the further lines that it has are added to `source`."""
    logical = source[0]
    if _says_nothing(logical):
        return logical
    while logical.rstrip().endswith(escape) and (follows := next(rest, None)) is not None:
        source.append(follows)
        # Comments and empty lines within an instruction are no part of it.
        logical = logical if _says_nothing(follows) else logical.rstrip().removesuffix(escape) + follows
    return logical


def _says_nothing(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _heredocs(text: str, lines: Iterator[str]) -> Iterator[_Heredoc]:
    for found in _HEREDOC.finditer(text):
        if found[1] is None:
            continue
        content = ""
        for line in lines:
            kept = line.lstrip("\t") if found[2] else line
            if kept == found[4]:
                break
            content += f"{kept}\n"
        else:
            raise _refused(f"the heredoc {found[4]} has no end")
        yield _Heredoc(found[1], found[4], bool(found[3]), content)


def _run(after: str, heredocs: Sequence[_Heredoc], shell: Sequence[str]) -> str:
    command, first = _FLAGS.sub("", after, count=1), heredocs[0]
    flags = after.removesuffix(command)
    if command.strip() != first.word:
        # The shell itself reads them.
        text = "".join([f"{command}\n", *(f"{each.text}{each.name}\n" for each in heredocs)])
        return f"RUN {flags}{json.dumps([*shell, text])}"
    if first.text.startswith("#!"):
        return f"RUN {flags}{json.dumps([*_SHELL, _AS_PROGRAM, 'sh', first.text])}"
    return f"RUN {flags}{json.dumps([*shell, first.text])}"


def _copy(after: str, heredocs: Sequence[_Heredoc], files: dict[str, str]) -> str:
    *sources, target = _FLAGS.sub("", after, count=1).split()
    if len(sources) != len(heredocs):
        raise _refused(f"COPY {after}: must have heredocs alone")
    words = [f"COPY --from={HEREDOCS}", *after.split()[: -1 - len(sources)]]
    for each in heredocs:
        if "$" in each.text and not each.quoted:
            raise _refused(f"the heredoc {each.name} has variables: quote its name in COPY, or write the file by RUN")
        words.append(f"{len(files)}/{each.name}")
        files[words[-1]] = each.text
    return " ".join([*words, target])


def _refused(reason: str) -> ImageBuildError:
    return ImageBuildError(f"the Dockerfile does not build: {reason}")
