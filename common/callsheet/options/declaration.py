"""Declares options on the fields of settings classes, and reads them: one by one, as values, as a command line."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from callsheet.credentials.secret_files import secret_file

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRule:
    """Rule for a path, by default that it is a directory if it exists; `resolve` makes it absolute."""

    exists: bool = False
    file: bool = False
    directory: bool = True
    resolve: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """How a command line offers a field of a settings class: `slots: Annotated[int, Setting("The most at once.")] = 8`.

    Attributes:
        help: What it means, for the user.
        flag: By default "--" and the field's name; "--a/--b" for a bool with two names.
        variable: Environment variable that it can come from.
        metavar: What stands for its value in the help.
        least: The least number.
        default: Used if it is not given, where the field has no default or another one; a function is called for it.
        default_text: What the help shows as its default.
        text: The type that is read from the command line, where that is not the field's.
        parse: Makes the field's value of what was read, of each one if it is repeatable. ValueError names the rule.
        repeatable: Whether it may be given several times; the field is a tuple then.
        path: What a path must be.
        secret: Whether it is or may hold a secret. There is then a second option, with "-file" behind its flag and
            "_FILE" behind its variable, for a file that holds it: everybody on the machine reads a command line.
    """

    help: str
    flag: str = ""
    variable: str | None = None
    metavar: str | None = None
    least: float | None = None
    default: object = ...
    default_text: str = ""
    text: type | None = None
    parse: Callable[[Any], object] | None = None
    repeatable: bool = False
    path: PathRule | None = None
    secret: bool = False

    def __post_init__(self) -> None:
        if self.secret and self.variable is None:
            raise ValueError("variable: None: a secret needs one, as it is not to stand on a command line")


def holds_secret(text: str) -> bool:
    """Returns whether the text of a secret option is secret: a URL is one only with a password in it."""
    _, separator, rest = text.partition("://")
    user = rest.partition("/")[0].rpartition("@")[0]
    return not separator or ":" in user or "password=" in rest


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Bounds a field that is no option: `slots: Annotated[int, AtLeast(1)] = 8`.

    Attributes:
        least: The least number.
    """

    least: float


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Marks a field that holds settings itself: these fields of it are no options here."""

    names: frozenset[str]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", frozenset(names))


@dataclass(frozen=True, slots=True)
class OptionsOf:
    """Marks a mapping: values of options that other settings declare, by name, as they were read, if they were given.

    Attributes:
        kinds: The other settings. Of options with the same name that of the first ones is offered.
        left_out: Names of options that are not offered.
    """

    kinds: tuple[type, ...]
    left_out: frozenset[str]

    def options(self) -> dict[str, DeclaredOption]:
        """The options by name, without defaults but in their help."""
        found: dict[str, DeclaredOption] = {}
        for each in (option for kind in self.kinds for option in declared_options(kind)):
            if each.name not in self.left_out and each.name not in found:
                setting = replace(each.setting, default_text=each.setting.default_text or each.default_text)
                found[each.name] = replace(each, type=each.type | None, default=None, setting=setting)
        return found


@dataclass(frozen=True, slots=True)
class DeclaredOption:
    """One option of a settings class.

    Attributes:
        name: As an identifier, for instance "data_dir" for "--data-dir".
        type: What is read from the command line.
        default: Its default; a function is called for it; `...` for one that must be given.
        setting: What was declared.
    """

    name: str
    type: Any
    default: object
    setting: Setting

    def value(self, read: Any) -> object:
        """The field's value for what was read.

        Raises:
            ValueError: It breaks the option's rule; the message begins with the name.
        """
        parse = self.setting.parse
        _check_least(self.name, read, self.setting.least)
        try:
            if self.setting.repeatable:
                return tuple(read if parse is None else map(parse, read))
            return read if parse is None else parse(read)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error

    def read(self, text: str) -> object:
        """Returns the value that a text stands for if no command line has read it.

        Raises:
            ValueError: It does not stand for a value of the option's type.
        """
        kind = next(each for each in (*get_args(self.type), self.type) if each is not type(None))
        try:
            value: object = {"true": True, "false": False}[text] if kind is bool else kind(text)
        except (KeyError, ValueError) as error:
            raise ValueError(f"{self.name}: {text!r} is no {kind.__name__}") from error
        return value

    @property
    def default_text(self) -> str:
        """Its default as the help shows it; empty if it has none."""
        if self.default is None or self.default is ... or callable(self.default):
            return ""
        return "".join(self.arguments(self.default)[-1:]).removeprefix("--")

    def arguments(self, value: object) -> list[str]:
        """The command line that gives it this value."""
        positive, _, negative = (self.setting.flag or f"--{self.name.replace('_', '-')}").partition("/")
        if isinstance(value, bool):
            if not value and not self.setting.flag:
                negative = positive.replace("--", "--no-", 1)
            flag = positive if value else negative
            return [flag] if flag else []
        if isinstance(value, tuple) and self.setting.repeatable:
            return [argument for each in value for argument in self.arguments(each)]
        if isinstance(value, float):
            return [positive, f"{value:g}"]
        return [positive, str(value.value if isinstance(value, Enum) else value)]


def check_least(settings: Any) -> None:
    """Refuses settings of which a number is below what its field declares; for `__post_init__`.

    Raises:
        ValueError: The message names field, value and rule.
    """
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        for mark in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
            # What is parsed is bounded as it is read, not as the field's value.
            if isinstance(mark, AtLeast) or (isinstance(mark, Setting) and mark.parse is None):
                _check_least(name, getattr(settings, name), mark.least)


def _check_least(name: str, value: Any, least: float | None) -> None:
    if least is not None and value is not None and not value >= least:
        raise ValueError(f"{name}: {value}: must be at least {least:g}")


def declared_options(settings: type, left_out: frozenset[str] = frozenset()) -> Iterator[DeclaredOption]:
    """The options of a settings class (a dataclass), those of fields that hold settings included, in their order."""
    for field, kind, mark in _fields(settings, left_out):
        if isinstance(mark, Setting):
            yield (declared := _declared(field, kind, mark))
            if mark.secret:
                yield _file_of(declared)
        elif isinstance(mark, OptionsOf):
            yield from mark.options().values()
        else:
            yield from declared_options(kind, mark.names)


def from_values(settings: type[S], values: Mapping[str, object], left_out: frozenset[str] = frozenset()) -> S:
    """Makes settings of values by option name; an option without a value, or with None, keeps its field's default.

    Raises:
        ValueError: A value breaks its rule, a secret's file cannot be read, or the settings refuse it.
    """
    given: dict[str, object] = {}
    for field, kind, mark in _fields(settings, left_out):
        if isinstance(mark, LeaveOut):
            given[field.name] = from_values(kind, values, mark.names)
            continue
        if isinstance(mark, OptionsOf):
            read = {name: values[name] for name in mark.options() if values.get(name) is not None}
            given[field.name] = {name: tuple(each) if isinstance(each, list) else each for name, each in read.items()}
            continue
        declared = _declared(field, kind, mark)
        value = values.get(declared.name)
        if mark.secret and (path := values.get(f"{declared.name}_file")) is not None:
            if value is not None:
                raise ValueError(f"{declared.name}_file: must not be given with {declared.name}")
            value = _read(f"{declared.name}_file", Path(str(path)))
        if value is not None:
            given[field.name] = declared.value(value)
    return settings(**given)


def option_values(settings: object) -> dict[str, object]:
    """Returns the values of settings by option name: what `from_values` makes them of, and `command_line` passes on."""
    values: dict[str, object] = {}
    for field, kind, mark in _fields(type(settings), frozenset()):
        value = getattr(settings, field.name)
        if isinstance(mark, Setting):
            values[_declared(field, kind, mark).name] = value
        else:
            values |= option_values(value) if isinstance(mark, LeaveOut) else value
    return values


def from_texts(settings: type[S], texts: Iterable[str]) -> S:
    """Makes settings of texts "name=value", with the names of options or their flags.

    Raises:
        ValueError: One is no option of the settings, or its value breaks its rule.
    """
    known = {option.name: option for option in declared_options(settings)}
    values: dict[str, object] = {}
    for text in texts:
        name, _, value = text.partition("=")
        option = known.get(name.removeprefix("--").replace("-", "_"))
        if option is None:
            raise ValueError(f"{name!r} is none of {', '.join(known) or 'no options'}")
        values[option.name] = option.read(value)
    return from_values(settings, values)


def command_line(settings: type, values: Mapping[str, object]) -> list[str]:
    """The arguments that give the options of a settings class these values.

    Other values, None and secrets are left out: everybody on the machine reads a command line.
    """
    known = (
        option
        for option in declared_options(settings)
        if values.get(option.name) is not None and not option.setting.secret
    )
    return [argument for option in known for argument in option.arguments(values[option.name])]


def _fields(
    settings: type, left_out: frozenset[str]
) -> Iterator[tuple[Field[Any], Any, Setting | LeaveOut | OptionsOf]]:
    """The fields that are options, and those that hold some, with their types."""
    hints = get_type_hints(settings, include_extras=True)
    for field in fields(settings):
        if field.name in left_out:
            continue
        kind, *marks = (
            get_args(hints[field.name]) if get_origin(hints[field.name]) is Annotated else (hints[field.name],)
        )
        mark = next((each for each in marks if isinstance(each, Setting | LeaveOut | OptionsOf)), None)
        if mark is not None:
            yield field, kind, mark
        elif isinstance(kind, type) and is_dataclass(kind) and any(declared_options(kind)):
            yield field, kind, LeaveOut()


def _file_of(declared: DeclaredOption) -> DeclaredOption:
    """The option for the file that holds a secret."""
    flag = declared.setting.flag or f"--{declared.name.replace('_', '-')}"
    setting = Setting(
        "A file that contains it.",
        flag=f"{flag}-file",
        variable=f"{declared.setting.variable}_FILE",
        default_text="none",
        path=PathRule(file=True, directory=False, exists=True),
    )
    return DeclaredOption(f"{declared.name}_file", Path | None, None, setting)


def _read(name: str, path: Path) -> str:
    try:
        text = secret_file(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}: {path}: cannot be read: {error}") from error
    if not text:
        raise ValueError(f"{name}: {path}: is empty")
    return text


def _declared(field: Field[Any], kind: Any, setting: Setting) -> DeclaredOption:
    name = setting.flag.partition("/")[0].removeprefix("--").replace("-", "_") or field.name
    default = setting.default
    if default is ... and field.default_factory is not MISSING:
        default = field.default_factory
    elif default is ... and field.default is not MISSING:
        default = field.default
    read = setting.text or kind
    if setting.repeatable:
        element = setting.text or get_args(kind)[0]
        read, default = list[element] | None, None  # type: ignore[valid-type]
    elif setting.text is not None and get_origin(kind) in (Union, types.UnionType):
        read = setting.text | None
    return DeclaredOption(name, read, default, setting)
