"""Writes frozen dataclasses and enums for messages of the contract: `value_modules`, for scripts/generate_protos.py.

`MESSAGES` and `ENUMS` name what has a value. All else comes from the protos by rule:

- the text of a docstring and of its attributes is the comment;
- a Duration or a Timestamp is a number of seconds, with "_s" or "_at" behind its name, and a Blob is bytes;
- a list is a tuple, a map is a dict, and what may be unset is None then;
- an enum loses its prefix, and a number that this code does not know is `Enum.unknown`.

A class has `from_message`. A message that refers to stored bytes takes a function that reads them.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
)

PACKAGE: Final = ".callsheet.v1."
BLOB: Final = f"{PACKAGE}Blob"
TIMES: Final = {".google.protobuf.Duration": "_s", ".google.protobuf.Timestamp": "_at"}
SCALARS: Final = {
    FieldDescriptorProto.TYPE_DOUBLE: ("float", "0.0"),
    FieldDescriptorProto.TYPE_FLOAT: ("float", "0.0"),
    FieldDescriptorProto.TYPE_BOOL: ("bool", "False"),
    FieldDescriptorProto.TYPE_STRING: ("str", '""'),
    FieldDescriptorProto.TYPE_BYTES: ("bytes", 'b""'),
}
WHOLE: Final = ("int", "0")
MOST_COLUMNS: Final = 120


@dataclass(frozen=True)
class Value:
    """A message that has a class.

    Attributes:
        name: The class; empty takes the message's name.
        needs: So many of the first attributes have no default.
        order: Fields whose attributes come first; the others follow as they are in the proto.
        without: Fields that are for the scheduler and managers only.
        flat: Fields whose own fields stand in their place.
        names: Attributes with another name than the rules give.
        none_for_0: Fields whose 0 is None.
        always: Fields of messages that are never None; unset they are the message's defaults.
        defaults: Attributes with another default than the contract's. Such a number stands for 0 in a message too.
        hidden: Attributes that `repr` leaves out.
        taken: Expressions that take an attribute from `message` in another way.
        lifted: Attributes of an attribute that are properties of the class, too, for instance "spec.job_id".
        base: The class of `callsheet.v1.values` with further methods.
        is_sent: Only in requests: it takes any sequence, and there is no `from_message`.
    """

    name: str = ""
    needs: int = 0
    order: str = ""
    without: str = ""
    flat: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    none_for_0: str = ""
    always: str = ""
    defaults: Mapping[str, str] = field(default_factory=dict)
    hidden: str = ""
    taken: Mapping[str, str] = field(default_factory=dict)
    lifted: str = ""
    base: str = ""
    is_sent: bool = False


@dataclass(frozen=True)
class Enumeration:
    """An enum of the contract that has one in Python.

    Attributes:
        unknown: The member for a number that this code does not know, and for none. Empty takes UNSPECIFIED; "None"
            means that there is no such member.
        base: What it derives from.
        name: The class; empty takes the enum's name.
    """

    unknown: str = "UNSPECIFIED"
    base: str = "Enum"
    name: str = ""


MESSAGES: Final[Mapping[str, Value]] = {
    # common.proto
    "Cost": Value(base="CostMethods"),
    # outcome.proto
    "Timeline": Value(base="TimelineMethods"),
    "Usage": Value(none_for_0="peak_memory_bytes", always="cost"),
    "PolicyVersionSpan": Value(needs=3),
    "GenerateResult": Value(needs=1, defaults={"finish_reason": "FinishReason.STOP"}),
    "EnvResetResult": Value(needs=1, without="trajectory_id"),
    "CommandResult": Value(
        needs=1,
        order="exit_code stdout stderr",
        none_for_0="signal",
        # Of an older scheduler, and in outcomes that it recorded, it is 0 beside a signal.
        taken={"exit_code": "-message.signal or message.exit_code"},
    ),
    "SessionReport": Value(),
    "DownloadedFile": Value(needs=1, hidden="content"),
    "ToolCallResult": Value(needs=1),
    "RewardResult": Value(needs=1),
    # buffer.proto
    "BufferedTrajectory": Value(
        "FinishedTrajectory",
        needs=1,
        flat="result",
        always="took waited",
        defaults={"whole": "True"},
        hidden="payload",
    ),
    "TrajectoryBatch": Value("BatchContent", needs=1, always="lease"),
    "LeasedBatchStatus": Value("LeasedBatch", needs=3),
    "LengthShare": Value(needs=3),
    "BufferStatus": Value(),
    # weights.proto
    "EngineStatus": Value("RolloutEngine", needs=1),
    "RolloutStatus": Value(needs=2, defaults={"at_once": "1"}, base="RolloutMethods"),
    # job.proto
    "JobSpec": Value("JobDescription", needs=1, none_for_0="max_actions max_buffered", defaults={"share": "1.0"}),
    "Staleness": Value(none_for_0="max_versions"),
    "GroupSpec": Value("GroupDescription", needs=2, none_for_0="quorum"),
    "TrajectorySpec": Value("TrajectoryDescription", needs=2),
    "JobStatus": Value(needs=1, always="buffer cost", lifted="spec.job_id"),
    "TrajectoryStatus": Value(needs=1, always="cost", lifted="spec.trajectory_id"),
    "GroupStatus": Value(needs=1, always="cost", lifted="spec.group_id"),
    # manager_service.proto
    "HostedService": Value(
        "ServiceStatus",
        needs=5,
        without="setup_s instances kept_set_ups copies_sandboxes kv_tokens instance_slots demand",
        none_for_0="slots",
    ),
    "EngineWeights": Value(needs=2, without="proved_by updating last_update", base="EngineWeightsMethods"),
    "SandboxState": Value("SandboxOwner", needs=3, without="held_mib"),
    # admin_service.proto
    "GetStatusResponse": Value("SchedulerStatus", needs=5, without="ends", base="SchedulerMethods"),
    "ManagerStatus": Value(needs=8, without="loads", names={"leaves_by": "leaves_by"}),
    "LostManager": Value(needs=5, names={"time": "lost_at"}),
    "WantedUnits": Value(needs=6),
    "NodeStatus": Value(needs=3),
    "ListActionsResponse": Value("OpenActions", needs=2),
    "ExplainResponse": Value("Explanation", needs=8, flat="key"),
    "Holder": Value(needs=7),
    "ExpectedRun": Value(needs=7),
    "ResourceShortage": Value("Shortage", needs=5),
    "StoryEvent": Value(needs=2, names={"time": "at"}),
    "ClosedJob": Value(needs=5, names={"opened": "opened", "closed": "closed"}),
    "DrainManagerResponse": Value("DrainReport", needs=3),
    "WhatIfResponse": Value("WhatIf", needs=5),
    "Outlook": Value(needs=4),
    "ClassOutlook": Value(needs=5),
    "SharedCores": Value(needs=4),
    # Only in requests.
    "SamplingParameters": Value(
        "Sampling",
        order="max_new_tokens temperature top_p top_k seed stop",
        always="temperature",
        defaults={"max_new_tokens": "16", "temperature": "1.0", "top_p": "1.0"},
        is_sent=True,
    ),
    "Timeouts": Value(is_sent=True),
    "RetryPolicy": Value("Retry", none_for_0="max_attempts backoff_multiplier", is_sent=True),
    "ChatMessage": Value(needs=2, is_sent=True),
    "ConversationText": Value(is_sent=True),
    "TensorSpec": Value("BroadcastTensor", needs=3, is_sent=True),
    "TransferGroup": Value(
        needs=5,
        order="address port group_name world_size tensors",
        defaults={"backend": '"nccl"'},
        is_sent=True,
    ),
    "Canary": Value(flat="expected", is_sent=True),
    "TrajectoryResult": Value("FinishedResult", needs=1, is_sent=True),
}
ENUMS: Final[Mapping[str, Enumeration]] = {
    "OutputStream": Enumeration(),
    "ActionKind": Enumeration("None"),
    "LogProbsMode": Enumeration("SAMPLED"),
    "FailureKind": Enumeration(),
    "TimeoutKind": Enumeration(),
    "FinishReason": Enumeration(),
    "UpdateMode": Enumeration("DRAIN", "StrEnum"),
    "WeightsStanding": Enumeration(),
    "EngineState": Enumeration("WAITING"),
    "PriorityClass": Enumeration("TRAIN"),
    "Opening": Enumeration("CREATED"),
    "OnInfra": Enumeration("REPLACE"),
    "TrajectoryEnd": Enumeration("None"),
    "ActionState": Enumeration(),
    "WaitReason": Enumeration(),
    # Only for requests.
    "Hold": Enumeration("ACTION"),
    "Unservable": Enumeration("REFUSE"),
    "RewardPlace": Enumeration("FRESH", name="Where"),
    "RewardBackground": Enumeration("None", name="BackgroundProcesses"),
    "Settlement": Enumeration("ACKNOWLEDGE"),
}

READ: Final = "read: Callable[[common_pb2.Blob], bytes]"
READS: Final = re.compile(r"\bread\b")
IMPORTS: Final = {
    "collections.abc": ("Callable", "Mapping", "Sequence"),
    "dataclasses": ("dataclass", "field"),
    "enum": ("Enum", "StrEnum"),
    "typing": ("Final", "Self"),
    "callsheet.v1.values": (*sorted(each.base for each in MESSAGES.values() if each.base), "mapping", "seconds"),
}
"""Names that a module may use, by the modules that they come from."""


class Attribute(NamedTuple):
    """An attribute of a class, in the source texts of its parts."""

    name: str
    type: str
    default: str
    taken: str
    comment: str


class Contract:
    """The protos with their comments, from which the values are written."""

    def __init__(self, descriptors: FileDescriptorSet) -> None:
        self._homes: dict[str, str] = {}
        self._messages: dict[str, DescriptorProto] = {}
        self._enums: dict[str, EnumDescriptorProto] = {}
        self._comments: dict[str, str] = {}
        self._entries: dict[str, DescriptorProto] = {}
        for file in descriptors.file:
            self._messages |= {each.name: each for each in file.message_type}
            self._enums |= {each.name: each for each in file.enum_type}
            for message in file.message_type:
                place = f".{file.package}.{message.name}"
                self._entries |= {f"{place}.{entry.name}": entry for entry in message.nested_type}
            texts = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}
            described: Any  # messages, then enums
            for number, described in ((4, file.message_type), (5, file.enum_type)):
                for index, each in enumerate(described):
                    self._homes[each.name] = Path(file.name).stem
                    self._comments[each.name] = texts.get((number, index), "")
                    for nth, part in enumerate(each.field if isinstance(each, DescriptorProto) else each.value):
                        self._comments[f"{each.name}.{part.name}"] = texts.get((number, index, 2, nth), "")

    def modules(self) -> dict[str, str]:
        """Returns the source text of each module, by the stem of its file."""
        parts: dict[str, list[str]] = {}
        for name in ENUMS:
            parts.setdefault(self._homes[name], []).extend(self._enum(name))
        for name in MESSAGES:
            parts.setdefault(self._homes[name], []).append(self._class(name))
        return {f"{home}_values": _module(home, "\n\n\n".join(classes) + "\n") for home, classes in parts.items()}

    def _enum(self, name: str) -> tuple[str, str]:
        prefix, made = constant(name), ENUMS[name].name or name
        members, table = [], []
        for value in self._enums[name].value:
            member = value.name.removeprefix(f"{prefix}_")
            comment = " ".join(self._comments[f"{name}.{value.name}"].split())
            if not value.number:
                if ENUMS[name].unknown != member:
                    continue
                comment = f"{comment} Also a value that is newer than this code."
            members += [f'    {member} = "{member.lower()}"', _quoted([comment], 4)]
            table.append(f"    {value.number}: {made}.{member},")
        head = f"class {made}({ENUMS[name].base}):\n{_quoted(_paragraphs(self._comments[name]), 4)}\n"
        numbers = f"{prefix}: Final[Mapping[int, {made}]] = {{"
        return "\n".join([head, *members]), "\n".join([numbers, *table, "}"])

    def _class(self, name: str) -> str:
        value = MESSAGES[name]
        attributes = list(self._attributes(name, value))
        blocks = _paragraphs(self._comments[name])
        lines = [f"{each.name}: {each.comment}" for each in attributes]
        listed = "\n".join(_filled(each, 8, 12) for each in lines)
        base = f"({value.base})" if value.base else ""
        takes_blobs = any(READS.search(each.taken) for each in attributes)
        given = f"message: {self._homes[name]}_pb2.{name}{f', {READ}' * takes_blobs}"
        head = [
            "@dataclass(frozen=True, slots=True)",
            f"class {value.name or name}{base}:",
            _quoted(blocks, 4, f"    Attributes:\n{listed}"),
            "",
            *(f"    {each.name}: {each.type}{each.default}" for each in attributes),
        ]
        method = [
            "",
            *self._lifted(name, value),
            "    @classmethod",
            f"    def from_message(cls, {given}) -> Self:",
            f'        """Returns the value of a message{", whose blobs `read` reads" * takes_blobs}."""',
            "        return cls(",
            *(f"            {each.taken}," for each in attributes),
            "        )",
        ]
        return "\n".join(head if value.is_sent else head + method)

    def _lifted(self, name: str, value: Value) -> Iterator[str]:
        for path in value.lifted.split():
            outer, inner = path.split(".")
            (message,) = (each.type_name for each in self._messages[name].field if each.name == outer)
            other = message.removeprefix(PACKAGE)
            (lifted,) = (each for each in self._attributes(other, MESSAGES[other]) if each.name == inner)
            yield f"    @property\n    def {inner}(self) -> {lifted.type}:"
            yield f"{_quoted([lifted.comment], 8)}\n        return self.{path}\n"

    def _attributes(self, name: str, value: Value) -> Iterator[Attribute]:
        first = {each: place for place, each in enumerate(value.order.split())}
        fields = sorted(self._fields(name, value, "message"), key=lambda found: first.get(found[1].name, len(first)))
        for index, (owner, each, source) in enumerate(fields):
            attribute = value.names.get(each.name, each.name + TIMES.get(each.type_name, ""))
            is_required, zero_is_none = index < value.needs, each.name in value.none_for_0.split()
            if each.label == each.LABEL_REPEATED:
                type_, default, taken = self._many(each, source, self._homes[name])
                type_ = re.sub(r"^tuple\[(.*), \.\.\.\]", r"Sequence[\1]", type_) if value.is_sent else type_
            else:
                type_, default, template = self._one(each, self._homes[name])
                taken = template.format(source)
                if zero_is_none:
                    taken += " or None"
                elif _may_be_unset(each) and not is_required and each.name not in value.always.split():
                    taken += f' if {source.rpartition(".")[0]}.HasField("{each.name}") else None'
                if taken.endswith(" None") or default == "None":
                    type_, default = f"{type_} | None", "None"
            comment = " ".join(self._comments[f"{owner}.{each.name}"].split())
            if "None" in type_:
                comment = re.sub(r"\b[Uu]nset\b|(?<![\w.,])0(?= (?:if|means|takes)\b)", "None", comment)
            if attribute in value.defaults:
                default = value.defaults[attribute]
                taken += f" or {default}" * (type_ in {"float", "int"})
            if attribute in value.hidden.split():
                default = f"field(default={default}, repr=False)"
            default = "" if is_required else f" = {default}"
            yield Attribute(attribute, type_, default, value.taken.get(attribute, taken), comment)

    def _fields(self, name: str, value: Value, source: str) -> Iterator[tuple[str, FieldDescriptorProto, str]]:
        """Yields the fields of a class, each with the message that it is of and the text that reads it."""
        for each in self._messages[name].field:
            if each.name in value.flat.split():
                yield from self._fields(_short(each), value, f"{source}.{each.name}")
            elif each.name not in value.without.split():
                yield name, each, f"{source}.{each.name}"

    def _one(self, each: FieldDescriptorProto, home: str) -> tuple[str, str, str]:
        """Returns the type of a single value, its default, and the form of the text that takes it from its field."""
        name = _short(each)
        if each.type_name == BLOB:
            return "bytes", 'b""', "read({})"
        if each.type_name in TIMES:
            return "float", "0.0", "seconds({})"
        if each.type == each.TYPE_MESSAGE:
            made = self._place(name, home) + (MESSAGES[name].name or name)
            blobs = ", read" * any(READS.search(other.taken) for other in self._attributes(name, MESSAGES[name]))
            return made, f"field(default_factory={made})", f"{made}.from_message({{}}{blobs})"
        if each.type == each.TYPE_ENUM:
            place, unknown = self._place(name, home), ENUMS[name].unknown
            if unknown == "None":
                return place + name, unknown, f"{place}{constant(name)}.get({{}})"
            member = f"{place}{name}.{unknown}"
            return place + name, member, f"{place}{constant(name)}.get({{}}, {member})"
        type_, default = SCALARS.get(each.type, WHOLE)
        return type_, default, "{}"

    def _many(self, each: FieldDescriptorProto, source: str, home: str) -> tuple[str, str, str]:
        """Returns the type of a list or a map, its default, and the text that takes it from its field."""
        entry = self._entries.get(each.type_name)
        if entry is not None:
            key, item = (self._one(part, home)[0] for part in entry.field)
            return f"Mapping[{key}, {item}]", "field(default_factory=dict)", f"mapping({source})"
        type_, _, template = self._one(each, home)
        if each.type == each.TYPE_ENUM:
            table = self._place(_short(each), home) + constant(_short(each))
            taken = f"tuple({table}[each] for each in {source} if each in {table})"
        elif READS.search(template):
            taken = f"tuple({template.format('each')} for each in {source})"
        elif template == "{}":
            taken = f"tuple({source})"
        else:
            taken = f"tuple(map({template.removesuffix('({})')}, {source}))"
        return f"tuple[{type_}, ...]", "()", taken

    def _place(self, name: str, home: str) -> str:
        """Returns the text before a name to use it in a module, for instance "common_values."."""
        return "" if self._homes[name] == home else f"{self._homes[name]}_values."


def _may_be_unset(each: FieldDescriptorProto) -> bool:
    if each.type_name == BLOB:
        return each.HasField("oneof_index")
    return each.proto3_optional or each.type == each.TYPE_MESSAGE


def _short(each: FieldDescriptorProto) -> str:
    return each.type_name.rpartition(".")[2]


def constant(name: str) -> str:
    """Returns the name of an enum as its members begin with it in the contract, for instance "FAILURE_KIND"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()


def _paragraphs(comment: str) -> list[str]:
    """Returns the summary of a comment, and its further paragraphs."""
    first, *others = (" ".join(each.split()) for each in comment.strip().split("\n\n"))
    summary, stop, more = first.partition(". ")
    return [summary + stop.rstrip(), *filter(None, [more, *others])]


def _quoted(paragraphs: list[str], indent: int, attributes: str = "") -> str:
    """Returns a docstring."""
    summary, *others = paragraphs
    if not others and not attributes:
        return _filled(f'"""{summary}"""', indent, indent)
    blocks = [_filled(each, indent, indent) for each in [f'"""{summary}', *others]]
    return "\n\n".join([*blocks, *filter(None, [attributes])]) + f'\n{" " * indent}"""'


def _filled(text: str, first: int, others: int) -> str:
    """Returns a text in lines that are indented."""
    return textwrap.fill(
        text,
        MOST_COLUMNS,
        initial_indent=" " * first,
        subsequent_indent=" " * others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _module(home: str, body: str) -> str:
    """Returns the source text of a module."""
    others = {f"{home}_pb2", *re.findall(r"\b\w+_(?:values|pb2)\b(?=\.)", body)} if "from_message" in body else ()
    ours = f"from callsheet.v1 import {', '.join(sorted(others))}"
    if len(ours) > MOST_COLUMNS:
        ours = "\n".join(["from callsheet.v1 import (", *(f"    {each}," for each in sorted(others)), ")"])
    used = {
        place: [each for each in names if re.search(rf"[ @(\[]{each}[\[(:)]", body)] for place, names in IMPORTS.items()
    }
    *standard, parts = [f"from {place} import {', '.join(names)}" if names else "" for place, names in used.items()]
    imports = [*filter(None, standard), "", ours * bool(others), parts]
    head = f'"""Values of {home}.proto, which `make protos` writes."""\n\nfrom __future__ import annotations'
    return "\n".join([head, "", re.sub("\n{2,}", "\n\n", "\n".join(imports)).strip("\n"), "\n", body])


def value_modules(descriptors: bytes) -> dict[str, str]:
    """Returns the source text of each module of values, by the stem of its file.

    Args:
        descriptors: A FileDescriptorSet of the contract, with its comments.
    """
    return Contract(FileDescriptorSet.FromString(descriptors)).modules()
