"""Values in columns of the journal that no database has a type for.

Rows are written by the driver, which knows nothing of these types; so `record_changes` encodes their values.
"""

from __future__ import annotations

import json
from typing import Any, Final

from callsheet.scheduler.core.words.costs import Account, Cost
from sqlalchemy import Dialect, Text, TypeDecorator

# Made once: `json.dumps` would make an encoder for every row.
encode_json: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class Json(TypeDecorator[Any]):
    """A JSON text that is read as a dict or a tuple. It is written as a text, as the driver takes it."""

    impl = Text
    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Reads it."""
        found = json.loads(value or "null")
        return tuple(found) if isinstance(found, list) else found


class OthersText(TypeDecorator[str]):
    """A text that others wrote; it is written as `storable` makes it."""

    impl = Text
    cache_ok = True


class AccountText(Json):
    """The account of a job or a trajectory; null for one without any cost."""

    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Dialect) -> Account | None:
        """Reads it."""
        found = super().process_result_value(value, dialect)
        return Account(Cost(*found[1:3]), Cost(*found[3:]), found[0]) if found else None


def encode_account(account: Account) -> str:
    """The text of an account."""
    spent, rate = account.spent, account.rate
    return encode_json((account.since, spent.held, spent.used, rate.held, rate.used))


def storable(text: str) -> str:
    """A text as every database takes it. PostgreSQL takes no NUL, and one record must not end the service."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
