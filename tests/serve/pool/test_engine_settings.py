from dataclasses import MISSING, fields

import pytest

from slm.data.errors import UserError
from slm.machine.hardware import compute_threads
from slm.serve.config import ServeConfig, ServerOptions, load
from slm.serve.engine.config import EngineConfig, EngineOptions
from slm.serve.pool.engine_settings import engine_config
from slm.serve.pool.memory_plan import read_facts


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "slm" / "tune"


def engine(path, *words):
    return engine_config(load(ServeConfig, "serve", [f"model={path}", *words], literal=("model",)).serve, path)


def test_every_option_arrives(tiny_path, cache):
    given = {
        "context": 128,
        "slots": 3,
        "kv_tokens": 512,
        "threads": 1,
        "batch": 64,
        "ubatch": 32,
        "prefill_chunk": 16,
        "prefix_cache": False,
        "cache_ram": 64,
        "cache_disk": 128,
        "context_shift": True,
        "kv_type": "q8_0",
        "kv_type_v": "q5_1",
        "flash_attn": True,
        "speculate": "draft",
        "draft_tokens": 5,
        "draft_model": str(tiny_path),
        "n_gpu_layers": 7,
        "stream_ms": 5.0,
        "adapt_threads": False,
    }
    config = engine_config(ServerOptions(**given), tiny_path)
    slot_bytes = round(128 * read_facts(tiny_path).kv_bytes("q8_0", "q5_1"))
    found = {"model_path": tiny_path, "draft_model": tiny_path, "slot_bytes": slot_bytes}
    assert config == EngineConfig(**{**given, **found})
    assert engine_config(ServerOptions(exact=True), tiny_path).exact
    others = {"exact", "model_path", "adapter", "adapters", "adapter_scale", "slot_bytes", "sampling", "chat_template"}
    assert {each.name for each in fields(EngineConfig)} == {*given, *others}, "all are tried here"


def test_the_engine_and_the_server_share_their_defaults(tiny_path, cache):
    config = engine_config(ServerOptions(), tiny_path)
    for each in fields(EngineOptions):
        if each.name != "threads":
            default = each.default if each.default_factory is MISSING else each.default_factory()
            assert getattr(config, each.name) == default == getattr(ServerOptions(), each.name)


def test_a_draft_model_must_exist(tiny_path):
    with pytest.raises(UserError, match="does not exist"):
        engine_config(ServerOptions(speculate="draft", draft_model="nowhere/m.gguf"), tiny_path)


def test_small_models_and_given_values_are_not_measured(tiny_path, cache):
    small = engine(tiny_path)
    assert (small.threads, small.batch, small.ubatch) == (compute_threads(), 512, 512)
    words = ("serve.threads=1", "serve.batch=64", "serve.ubatch=32", "serve.prefill_chunk=16", "serve.slots=3")
    given = engine(tiny_path, *words, "serve.tune=force")
    assert (given.threads, given.batch, given.ubatch, given.prefill_chunk, given.slots) == (1, 64, 32, 16, 3)
    assert not cache.exists()
    assert engine(tiny_path, "serve.batch=8").slots == 8, "no more slots than a batch has tokens"
