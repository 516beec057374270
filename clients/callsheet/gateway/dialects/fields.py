"""The fields of a request's body: each reader names the field, the value and the rule where the rule is broken."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from callsheet.gateway.chat import BadRequestError


@dataclass(frozen=True, slots=True)
class Fields:
    """An object in the body of a request. A field that is missing or null reads as None.

    Attributes:
        values: Its fields.
        place: Where it stands in the body, such as "messages[2]"; empty for the body itself.
    """

    values: Mapping[str, Any]
    place: str = ""

    def path(self, name: str) -> str:
        """The full name of a field."""
        return f"{self.place}.{name}" if self.place else name

    def error(self, name: str, rule: str) -> BadRequestError:
        """The error of a field that breaks a rule."""
        return BadRequestError(self.path(name), self.values.get(name), rule)

    def integer(self, name: str, *, least: int = 0) -> int | None:
        """An integer.

        Raises:
            BadRequestError: It is none, or below `least`.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(name, f"an integer of at least {least}")
        return value

    def number(self, name: str, *, least: float, most: float) -> float | None:
        """A number.

        Raises:
            BadRequestError: It is none, or not in `least` to `most`.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self.error(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, name: str) -> bool:
        """True or false; false where it is missing.

        Raises:
            BadRequestError: It is neither.
        """
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, "true or false")
        return bool(value)

    def text(self, name: str) -> str | None:
        """A text.

        Raises:
            BadRequestError: It is none.
        """
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(name, "a string")
        return value

    def required_text(self, name: str) -> str:
        """A text that has to be there and may be empty.

        Raises:
            BadRequestError: It is missing, or no text.
        """
        value = self.text(name)
        if value is None:
            raise self.error(name, "a string")
        return value

    def name(self, name: str) -> str:
        """A text that has to be there and is not empty.

        Raises:
            BadRequestError: It is missing, empty, or no text.
        """
        value = self.text(name)
        if not value:
            raise self.error(name, "a string that is not empty")
        return value

    def choice(self, name: str, choices: Collection[str]) -> str:
        """One of some words, which has to be there.

        Raises:
            BadRequestError: It is another.
        """
        value = self.values.get(name)
        if not isinstance(value, str) or value not in choices:
            raise self.error(name, "one of " + ", ".join(sorted(choices)))
        return value

    def object(self, name: str) -> Fields | None:
        """An object.

        Raises:
            BadRequestError: It is none.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, "an object")
        return Fields(value, self.path(name))

    def required_object(self, name: str) -> Fields:
        """An object that has to be there.

        Raises:
            BadRequestError: It is missing, or no object.
        """
        value = self.object(name)
        if value is None:
            raise self.error(name, "an object")
        return value

    def objects(self, name: str) -> list[Fields]:
        """A list of objects; empty where it is missing.

        Raises:
            BadRequestError: It is no list, or has something else in it.
        """
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(name, "a list of objects")
        places = [(f"{self.path(name)}[{index}]", item) for index, item in enumerate(value)]
        for place, item in places:
            if not isinstance(item, Mapping):
                raise BadRequestError(place, item, "an object")
        return [Fields(item, place) for place, item in places]

    def texts(self, name: str) -> tuple[str, ...]:
        """A text or a list of them, of which none is empty; no texts where it is missing.

        Raises:
            BadRequestError: It is neither, or a text is empty.
        """
        value = self.values.get(name)
        if value is None:
            return ()
        told = [value] if isinstance(value, str) else value
        if not isinstance(told, list) or not all(isinstance(item, str) and item for item in told):
            raise self.error(name, "a string or a list of strings, none of them empty")
        return tuple(told)

    def refuse(self, refused: Mapping[str, Refusal]) -> None:
        """Refuses fields that would change the answer in a way that the gateway cannot.

        Raises:
            BadRequestError: A field has a value that is not neutral.
        """
        for name, refusal in refused.items():
            value = self.values.get(name)
            if value is not None and value not in refusal.neutral:
                raise self.error(name, refusal.rule)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why a field is refused.

    Attributes:
        rule: What its value is to be, and why.
        neutral: Values that change nothing.
    """

    rule: str
    neutral: tuple[Any, ...] = ()


def text_of_parts(holder: Fields, name: str, kinds: Mapping[str, str]) -> str:
    """The text of a field that is a text or a list of parts; parts are joined by a line break.

    Args:
        holder: What has the field.
        name: The field; where it is missing or null, its text is empty.
        kinds: The types of parts that are text, each with the field that has it.

    Raises:
        BadRequestError: It is neither, or a part is no text.
    """
    value = holder.values.get(name)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise holder.error(name, "a string or a list of parts")
    return "\n".join(_text_of_part(part, kinds) for part in holder.objects(name))


def _text_of_part(part: Fields, kinds: Mapping[str, str]) -> str:
    kind = part.values.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        raise part.error("type", f"one of {', '.join(sorted(kinds))}, as the model reads text alone")
    return part.required_text(kinds[kind])
