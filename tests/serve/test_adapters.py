"""Two LoRA adapters and their base behind one server: no request gets another's model, cache or text."""

import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import httpx
import numpy as np
import pytest

from slm.data.errors import UserError
from slm.llama import random_model
from slm.llama.model import Model
from slm.serve.engine.batch_plan import Chunk, Plan
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.model_runner import ModelRunner
from slm.serve.engine.protocol import Delta, Embed, Failure, Generate, Reply, SamplingParams
from slm.serve.pool.model_files import named_adapters

CLIENTS = 16
SYSTEM = "the old fox and the little bird went to the river to find the red boat that the wind had taken away "
SHAPES = {"attn_q": (256, 256), "attn_v": (128, 256), "ffn_up": (512, 256), "ffn_down": (256, 512)}


def write_adapter(path: Path, seed: int, *, n_layers: int = 2, rank: int = 4) -> Path:
    """An adapter of the tiny model, strong enough to change what it says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2.0 * rank)
    rng = np.random.default_rng(seed)
    for layer in range(n_layers):
        for name, (rows, columns) in SHAPES.items():
            a, b = rng.normal(0, columns**-0.5, (rank, columns)), rng.normal(0, 0.3, (rows, rank))
            writer.add_tensor(f"blk.{layer}.{name}.weight.lora_a", a.astype(np.float32))
            writer.add_tensor(f"blk.{layer}.{name}.weight.lora_b", b.astype(np.float32))
    random_model.finish(writer)
    return path


@pytest.fixture(scope="module")
def adapters(tmp_path_factory) -> dict[str, Path]:
    """One is a file, the other is in the folder of a run."""
    folder = tmp_path_factory.mktemp("adapters")
    run = folder / "second" / "gguf" / "second-0M-v1.0-F32-LoRA.gguf"
    return {"first": write_adapter(folder / "first.gguf", 1), "second": write_adapter(run, 2)}


@pytest.fixture(scope="module")
def server(tmp_path_factory, tiny_path, adapters, start_server):
    words = [f"serve.lora=[first={adapters['first']},{adapters['second'].parents[1]}]", "serve.name=base"]
    words += ["serve.exact=true", "serve.slots=8", "serve.batch=128", "serve.ubatch=128", "serve.prefill_chunk=32"]
    with start_server(tmp_path_factory.mktemp("log") / "server.log", tiny_path, *words) as running:
        yield running


def requests() -> list[dict]:
    """Prompts that begin alike, so that a cached prefix of another model would be found if it could."""
    rng = random.Random(3)
    return [
        {
            "model": ("base", "first", "second")[i % 3],
            "prompt": SYSTEM * rng.randint(1, 2) + rng.choice(["hello", "the boat is", "why", ""]),
            "max_tokens": rng.randint(4, 20),
            "temperature": rng.choice([0, 0.9]),
            "seed": i,
            **{"top_k": 0, "top_p": 1.0, "min_p": 0.0},  # as the engine samples that is asked below
        }
        for i in range(3 * CLIENTS)
    ]


def alone(path: Path, adapter: Path | None, wanted: list[dict]) -> list[str]:
    """The texts of an engine that has one model and one request at a time, without a prefix cache."""
    engine = Engine(
        EngineConfig(
            model_path=path, adapter=adapter, threads=1, slots=8, exact=True, prefix_cache=False, prefill_chunk=32,
            batch=128, ubatch=128,
        )
    )  # fmt: skip
    texts = []
    for number, each in enumerate(wanted):
        sampling = SamplingParams(temperature=each["temperature"], seed=each["seed"])
        request = Generate(id=str(number), prompt=each["prompt"], sampling=sampling, max_tokens=each["max_tokens"])
        events, text = engine.handle(request), ""
        while engine.busy:
            events += engine.step()
        for event in events:
            assert not isinstance(event, Failure), event
            text += event.text if isinstance(event, Delta) else ""
        texts.append(text)
    engine.close()
    return texts


def test_sixteen_clients_at_once_get_what_each_model_says_alone(server, tiny_path, adapters):
    wanted = requests()

    def ask(body: dict) -> dict:
        return httpx.post(server.url + "/v1/completions", json=body, timeout=120).json()

    with ThreadPoolExecutor(CLIENTS) as clients:
        found = list(clients.map(ask, wanted))
    by_model = {}
    for name, adapter in ((None, None), *adapters.items()):
        model = name or "base"
        mine = [i for i, each in enumerate(wanted) if each["model"] == model]
        by_model[model] = alone(tiny_path, adapter, [wanted[i] for i in mine])
        assert [found[i]["choices"][0]["text"] for i in mine] == by_model[model]
        assert {found[i]["model"] for i in mine} == {model}
    # The adapters change what is said, or the comparison would show nothing.
    assert len({tuple(alone(tiny_path, each, wanted[:6])) for each in (None, *adapters.values())}) == 3


def test_adapters_are_listed_and_other_names_are_unknown(server):
    cards = {each["id"]: each for each in httpx.get(server.url + "/v1/models").json()["data"]}
    assert {name: card["parent"] for name, card in cards.items()} == {"base": None, "first": "base", "second": "base"}
    body = {"model": "frist", "prompt": "x", "max_tokens": 1}
    refused = httpx.post(server.url + "/v1/completions", json=body)
    assert refused.status_code == 404
    error = refused.json()["error"]
    assert error["code"] == "model_not_found"
    assert "did you mean 'first'?" in error["message"]


def test_a_request_chooses_adapters_and_scales(server):
    body = {"prompt": SYSTEM + "hello", "max_tokens": 12, "temperature": 0}

    def text(**more):
        answer = httpx.post(server.url + "/v1/completions", json={**body, **more}, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]

    first, base, url = text(model="first"), text(), server.url + "/lora-adapters"
    assert text(lora=[{"id": 0, "scale": 1}]) == first != base
    assert text(model="first", lora=[]) == text(lora=[{"id": 1, "scale": 0.0}]) == base
    assert text(model="first", lora=[{"id": 1, "scale": 1.0}]) == text(model="second")
    for wrong in ([{"id": 2, "scale": 1}], [{"id": 0, "scale": 1}] * 2, [{"id": 0}], {"id": 0}):
        refused = httpx.post(server.url + "/v1/completions", json={**body, "lora": wrong})
        assert (refused.status_code, refused.json()["error"]["param"].split(".")[0]) == (400, "lora")
    assert [(each["id"], each["scale"]) for each in httpx.get(url).json()] == [(0, 0.0), (1, 0.0)]
    assert [each["scale"] for each in httpx.get(url, params={"model": "first"}).json()] == [1.0, 0.0]
    assert httpx.post(url, json=[{"id": 0, "scale": 1.0}]).json() == {"success": True}
    assert httpx.get(url).json()[0]["scale"] == 1.0
    assert (text(), text(lora=[])) == (first, base)
    assert httpx.post(url, json={"adapters": []}).status_code == 200
    assert text() == base


def test_embeddings_are_the_adapters_own(tiny_path, adapters):
    found = []
    for adapter in (None, *adapters.values()):
        engine = Engine(EngineConfig(model_path=tiny_path, adapter=adapter, threads=1, slots=1))
        events = engine.handle(Embed(id="1", inputs=["the red boat"]))
        while engine.busy:
            events += engine.step()
        (reply,) = [event for event in events if isinstance(event, Reply)]
        found.append(reply.value.vectors[0])
        engine.close()
    assert len(set(found)) == 3


def test_an_adapter_that_cannot_be_served_is_one_line(tmp_path, tiny_path, adapters):
    base, taken = ("base", tiny_path), {"base"}
    assert list(named_adapters([str(adapters["first"])], base, taken)) == ["first"]
    with pytest.raises(UserError, match="two models are called base"):
        named_adapters([f"base={adapters['first']}"], base, taken)
    with pytest.raises(UserError, match="cannot be a model's name"):
        named_adapters([f"a b={adapters['first']}"], base, taken)
    with pytest.raises(UserError, match="does not fit"):
        named_adapters([str(write_adapter(tmp_path / "deep.gguf", 1, n_layers=3))], base, taken)
    with pytest.raises(UserError, match="is no LoRA adapter"):
        named_adapters([f"x={tiny_path}"], base, taken)
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft" / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="is an adapter in PEFT's form, and a server takes GGUF: `make export MODEL="):
        named_adapters([f"x={tmp_path}/peft"], base, taken)
    with pytest.raises(UserError, match=r"first.gguf is a LoRA adapter, no model: name the GGUF file of its base"):
        Model(adapters["first"])
    (tmp_path / "run" / "gguf").mkdir(parents=True)
    shutil.copy(tiny_path, tmp_path / "run" / "gguf")
    with pytest.raises(UserError, match="no exported LoRA adapter"):
        named_adapters([f"{tmp_path}/run"], base, taken)


def test_scales(tiny_path, adapters):
    """A scale of 0 is the model itself, 1 the adapter as it is, and 0.5 lies between them."""

    def logits(**more):
        options = {"threads": 1, "slots": 1, "kv_type": "f32", "flash_attn": False}
        runner = ModelRunner(EngineConfig(model_path=tiny_path, **options, **more))
        chunk = Chunk("a", 0, 0, tuple(b"the old fox"), "last")
        (index,) = runner.run(Plan((("a", 0),), (chunk,), (0,), (None,)))
        row = runner.logits(index)
        runner.close()
        return row

    base, whole = logits(), logits(adapter=adapters["first"])
    off, half = (logits(adapter=adapters["first"], adapter_scale=scale) for scale in (0.0, 0.5))
    np.testing.assert_allclose(off, base, atol=1e-4)
    assert 0.1 < np.abs(half - base).mean() / np.abs(whole - base).mean() < 0.9


def test_scales_of_the_command_line(tiny_path, adapters, tmp_path):
    path = adapters["first"]
    words = [f"weak={path}:0.5", f"strong={path}:2", f"against={path}:-1", str(path)]
    found = named_adapters(words, ("base", tiny_path), {"base"})
    assert {name: (each.path, each.scale) for name, each in found.items()} == {
        "weak": (path, 0.5),
        "strong": (path, 2.0),
        "against": (path, -1.0),
        "first": (path, 1.0),
    }
    odd = Path(shutil.copy(path, tmp_path / "a.gguf:7"))  # a file of that name counts first
    assert named_adapters([f"x={odd}"], ("base", tiny_path), {"base"})["x"].scale == 1
