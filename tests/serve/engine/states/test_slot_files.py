"""What a slot holds is saved, restored and erased, and counts as a prefix-cache hit afterwards."""

import json

import httpx
import pytest
from pydantic import TypeAdapter

from slm.llama.errors import LlamaError
from slm.serve.api.native import shapes
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.states.displaced import Displaced
from slm.serve.engine.states.slot_files import cache_mark, read_head, read_slot, write_slot
from tests.helpers import tiny_gguf

PROMPT = "the old fox and the little bird went to the river to find the red boat"


def test_a_file_is_for_one_model_and_cache(tmp_path, tiny_path):
    marks = [
        cache_mark(EngineConfig(model_path=tiny_path)),
        cache_mark(EngineConfig(model_path=tiny_path, kv_type="q8_0")),
        cache_mark(EngineConfig(model_path=tiny_path, kv_type_v="q8_0")),
        cache_mark(EngineConfig(model_path=tiny_gguf.write(tmp_path / "other.gguf", n_layers=1))),
        cache_mark(EngineConfig(model_path=tiny_path, adapter=tmp_path / "other.gguf")),
        cache_mark(EngineConfig(model_path=tiny_path, adapter=tmp_path / "other.gguf", adapter_scale=0.5)),
    ]
    assert len(set(marks)) == len(marks)
    path = tmp_path / "one.bin"
    for held in (Displaced((1, 2, 70000), b"state"), Displaced((1, 2, 70000), b"state", {1: b"a\n", 2: b"bc"})):
        assert write_slot(path, marks[0], held) == path.stat().st_size
        assert read_slot(path, marks[0]) == held
        assert read_head(path, marks[0]) == (held.tokens, tuple(held.kept))
    with pytest.raises(LlamaError, match=r"one.bin was saved with another model, adapter or type of cache"):
        read_slot(path, marks[1])
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(LlamaError, match=r"one.bin is damaged"):
        read_slot(path, marks[0])
    with pytest.raises(LlamaError, match=r"there is no saved slot two.bin"):
        read_slot(tmp_path / "two.bin", marks[0])


def test_over_http_and_after_a_restart(tmp_path, tiny_path, start_server):
    folder = tmp_path / "slots"

    def post(path, status=200, **body):
        answer = httpx.post(server.url + path, json=body, timeout=30)
        assert answer.status_code == status, answer.text
        return answer.json()

    def change(slot, action, status=200, **body):
        value = post(f"/slots/{slot}?action={action}", status, **body)
        if status == 200:
            TypeAdapter(shapes.SlotChanged).validate_json(json.dumps(value), strict=True)
        return value

    def ask():
        answer = post("/completion", prompt=PROMPT, n_predict=4, temperature=0)
        return answer["content"], answer["timings"]["cache_n"]

    words = ("serve.slots=2", f"serve.slot_save_path={folder}", "serve.kv_type=f32", "serve.flash_attn=false")
    with start_server(tmp_path / "log", tiny_path, *words) as server:
        text, cached = ask()
        assert cached == 0
        (slot,) = [each["id"] for each in httpx.get(server.url + "/slots").json() if each["n_cached"]]
        saved = change(slot, "save", filename="fox.bin")
        assert saved["n_written"] == (folder / "fox.bin").stat().st_size
        assert change(slot, "erase") == {"id_slot": slot, "n_erased": saved["n_saved"]}
        assert ask() == (text, 0)
        change(slot, "erase")
        restored = change(1 - slot, "restore", filename="fox.bin")
        assert restored["n_restored"] == saved["n_saved"]
        assert restored["n_read"] == saved["n_written"]
        again, cached = ask()
        assert (again, cached > 16) == (text, True)
        # Each mistake is a line.
        assert "no slot 2" in change(2, "erase", 400)["error"]["message"]
        assert "no saved slot" in change(0, "restore", 400, filename="bird.bin")["error"]["message"]
        assert "holds nothing" in change(slot, "save", 400, filename="x")["error"]["message"]
        for name in ("../x", "a/b", ".hidden", ""):
            assert change(0, "save", 400, filename=name)["error"]["param"] == "filename"
        assert change(0, "move", 400)["error"]["param"] == "action"
        assert change("x", "erase", 400)["error"]["param"] == "slot"
    with start_server(tmp_path / "log", tiny_path, *words) as server:
        change(0, "restore", filename="fox.bin")
        again, cached = ask()
        assert (again, cached > 16) == (text, True)


def test_a_slot_that_computes_is_left_alone(slow_server):
    body = {"prompt": "x", "n_predict": 4000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", slow_server.url + "/completion", json=body) as answer:
        lines = answer.iter_lines()  # once it is gone, the connection is closed
        next(lines)
        refused = httpx.post(slow_server.url + "/slots/0?action=erase", json={})
        assert (refused.status_code, "computes a request" in refused.text) == (400, True)
        unable = httpx.post(slow_server.url + "/slots/0?action=save", json={"filename": "x"})
        assert (unable.status_code, "serve.slot_save_path" in unable.text) == (501, True)
