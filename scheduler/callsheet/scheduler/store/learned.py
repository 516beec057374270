"""Rows of what was learned, which are replaced whole: a cache that may be lost. The store does not look into them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from callsheet.scheduler.store.schema import predictor_nodes
from sqlalchemy import Connection, bindparam, delete, insert, select

SavedRow = tuple[str, str]
"""A node's path and its numbers, both JSON."""


def replace_nodes(connection: Connection, saved: Sequence[SavedRow], removed: Sequence[str]) -> None:
    """Writes nodes, whether they are there or not, and deletes those removed."""
    gone = [{"key_name": _name(path)} for path in [*(path for path, _ in saved), *removed]]
    if gone:
        connection.execute(delete(predictor_nodes).where(predictor_nodes.c.name == bindparam("key_name")), gone)
    if saved:
        rows = [{"name": _name(path), "path": path, "numbers": numbers} for path, numbers in saved]
        connection.execute(insert(predictor_nodes), rows)


def load_nodes(connection: Connection) -> list[SavedRow]:
    """All nodes."""
    rows = connection.execute(select(predictor_nodes.c.path, predictor_nodes.c.numbers))
    return [(row.path, row.numbers) for row in rows]


def _name(path: str) -> str:
    # Paths hold labels and tasks of clients, and PostgreSQL's index takes no long ones.
    return sha256(path.encode()).hexdigest()
