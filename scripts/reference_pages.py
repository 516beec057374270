"""Reference pages that `make docs` makes from their sources: the protos, read by buf, and options, by typer."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


class ProtoFile:
    """One file of the contract as Markdown, with the comments that buf found in it."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        places = file.source_code_info.location
        self._maps = {
            f".callsheet.v1.{message.name}.{nested.name}": nested
            for message in file.message_type
            for nested in message.nested_type
            if nested.options.map_entry
        }
        self._comments = {tuple(place.path): place.leading_comments + place.trailing_comments for place in places}

    def text(self) -> str:
        """Returns a section for the file, and one for each service, message and enum in it."""
        lines = [f"## `{self._file.name}`", self._comment(12)]
        for index, service in enumerate(self._file.service):
            lines += [f"### {service.name}", self._comment(6, index), *self._methods(service, index)]
        for index, message in enumerate(self._file.message_type):
            lines += self._message(message, message.name, (4, index))
        for index, enum in enumerate(self._file.enum_type):
            lines += self._enum(enum, enum.name, (5, index))
        return "\n".join(lines)

    def _comment(self, *path: int) -> str:
        return " ".join(self._comments.get(path, "").split())

    def _methods(self, service: ServiceDescriptorProto, index: int) -> Iterator[str]:
        yield from ("", "| rpc | takes | returns | |", "|---|---|---|---|")
        for number, rpc in enumerate(service.method):
            takes = "stream of " * rpc.client_streaming + _link(rpc.input_type)
            returns = "stream of " * rpc.server_streaming + _link(rpc.output_type)
            yield f"| `{rpc.name}` | {takes} | {returns} | {_cell(self._comment(6, index, 2, number))} |"

    def _message(self, message: DescriptorProto, name: str, path: tuple[int, ...]) -> Iterator[str]:
        yield from (f"### {name}", self._comment(*path))
        if message.field:
            yield from ("", "| field | type | meaning |", "|---|---|---|")
        for index, field in enumerate(message.field):
            meaning = self._comment(*path, 2, index)
            if field.HasField("oneof_index") and not field.proto3_optional:
                meaning = f"One of `{message.oneof_decl[field.oneof_index].name}`. {meaning}"
            yield f"| `{field.name}` | {self._type(field)} | {_cell(meaning)} |"
        for index, nested in enumerate(message.nested_type):
            if not nested.options.map_entry:
                yield from self._message(nested, f"{name}.{nested.name}", (*path, 3, index))
        for index, enum in enumerate(message.enum_type):
            yield from self._enum(enum, f"{name}.{enum.name}", (*path, 4, index))

    def _enum(self, enum: EnumDescriptorProto, name: str, path: tuple[int, ...]) -> Iterator[str]:
        yield from (f"### {name}", self._comment(*path), "", "| value | meaning |", "|---|---|")
        for index, value in enumerate(enum.value):
            yield f"| `{value.name}` = {value.number} | {_cell(self._comment(*path, 2, index))} |"

    def _type(self, field: FieldDescriptorProto) -> str:
        if field.type_name in self._maps:
            key, value = self._maps[field.type_name].field
            return f"map of {self._type(key)} to {self._type(value)}"
        scalar = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
        repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
        word = "repeated " * repeated + "optional " * field.proto3_optional
        return word + (_link(field.type_name) if field.type_name else scalar)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _link(name: str) -> str:
    """Links a type of the contract to its section; others (Duration, Status) are only named."""
    short = name.removeprefix(".callsheet.v1.")
    return f"`{name[1:]}`" if short == name else f"[{short}](#{short.lower().replace('.', '')})"


def proto_pages() -> str:
    """Returns the reference of all services, messages and enums as Markdown, a section a file."""
    built = subprocess.run([BIN / "buf", "build", "-o", "-#format=binpb"], cwd=ROOT, check=True, capture_output=True)
    files = FileDescriptorSet.FromString(built.stdout).file
    return "\n\n".join(ProtoFile(file).text() for file in files if file.package == "callsheet.v1")


def command_line_pages() -> str:
    """Returns the options of all commands as Markdown."""
    command = [sys.executable, "-m", "typer", "callsheet.cli.app", "utils", "docs", "--name", "callsheet"]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return re.sub(r"^#", "##", text, flags=re.MULTILINE)
