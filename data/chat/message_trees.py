"""Message trees with a row for each message, as in OpenAssistant's tables: ``message_id`` and ``parent_id``.

Tested in tests/data/sources/conversations/test_chat_files.py.
"""

from collections.abc import Sequence
from typing import Any


def is_row(value: Any) -> bool:
    """Whether a record is one message of a tree."""
    return isinstance(value, dict) and {"message_id", "parent_id", "text", "role"} <= value.keys()


def tree_of(value: Any) -> str | None:
    """The name of the tree that a message belongs to; None for any other record."""
    return str(value.get("message_tree_id")) if is_row(value) else None


def join(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A tree's rows as one record: ``prompt`` is its first message, with ``replies`` at each."""
    nodes = {row["message_id"]: {**row, "replies": list[Any]()} for row in rows}
    root: dict[str, Any] = {}
    for node in nodes.values():
        if node["parent_id"] in nodes:
            nodes[node["parent_id"]]["replies"].append(node)
        elif not root:
            root = node
    return {"message_tree_id": rows[0].get("message_tree_id"), "prompt": root}
