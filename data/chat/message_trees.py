"""Message trees with a row for each message, as in OpenAssistant's tables: ``message_id`` and ``parent_id``.

Tested in tests/data/sources/conversations/test_chat_files.py.
"""

from collections.abc import Sequence
from typing import Any

from slm.data.chat.fields import is_empty


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


def shown(nodes: dict[str, Any], last: Any) -> list[Any]:
    """The messages that a chat shows, from the first to ``last``: of ChatGPT's exported chats, each node of which names
    its parent. Without empty ones, which its interface adds."""
    found, seen = [], set[Any]()
    while isinstance(node := nodes.get(last), dict) and last not in seen:
        seen.add(last)
        message = held if isinstance(held := node.get("message"), dict) else {}
        content = message.get("content")
        said = [content.get(each) for each in ("parts", "text", "result")] if isinstance(content, dict) else []
        if not is_empty(said):
            found.append({"author": message.get("author"), "content": content})
        last = node.get("parent")
    return found[::-1]
