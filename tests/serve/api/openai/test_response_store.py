"""The store of responses: bounded, and each key sees its own."""

import contextlib

import pytest

from slm.serve.api.core.messages import Message
from slm.serve.api.errors import ApiError
from slm.serve.api.openai import response_store
from slm.serve.api.openai.response_store import ResponseStore, Stored


def stored(key, text="hello", owner=None):
    return Stored(owner=owner, body={"id": key}, messages=(Message(role="user", content=text),))


def known(store, *keys, owner=None):
    found = []
    for key in keys:
        with contextlib.suppress(ApiError):
            found.append(store.get(key, owner).body["id"])
    return "".join(found)


def test_the_oldest_go_first(monkeypatch):
    store = ResponseStore()
    monkeypatch.setattr(response_store, "MOST_RESPONSES", 3)
    for key in "abcd":
        store.put(stored(key))
    assert known(store, *"abcd") == "bcd"
    monkeypatch.setattr(response_store, "MOST_BYTES", 2 * stored("e", "x" * 5000).n_bytes)
    store.put(stored("e", "x" * 5000))
    store.put(stored("f", "x" * 5000))
    assert known(store, *"bcdef") == "ef"
    store.put(stored("g", "x" * 50000))  # larger than all the room
    assert known(store, *"efg") == ""
    store.put(stored("h"))
    assert known(store, *"h") == "h"


def test_keys_and_deletion():
    store = ResponseStore()
    store.put(stored("a", owner=1))
    assert known(store, "a", owner=1) == "a"
    assert known(store, "a", owner=2) == known(store, "a") == ""
    with pytest.raises(ApiError):
        store.delete("a", 2)
    store.delete("a", 1)
    assert known(store, "a", owner=1) == ""
    with pytest.raises(ApiError) as caught:
        store.get("a", 1, param="previous_response_id")
    assert caught.value.status == 400
    assert caught.value.body["error"]["param"] == "previous_response_id"
