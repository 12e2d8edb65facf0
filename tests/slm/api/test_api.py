"""The Python API: what is imported when, a model in both engines, the words of commands, runs."""

import json
import subprocess
import sys
import types

import numpy as np
import pytest

import slm
from slm.api import jobs
from slm.api.models import Sampling, _until
from slm.data.chat.tokens import with_chatml
from tests.helpers.chat_model import base_tokenizer, write_chat_gguf


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """An untrained chat model as a Hugging Face directory, and as a GGUF file."""
    folder = tmp_path_factory.mktemp("model") / "chat"
    return folder, write_chat_gguf(folder, with_chatml(base_tokenizer()))


@pytest.fixture(scope="module")
def models(files):
    folder, gguf = files
    with slm.load(folder, threads=1) as in_torch, slm.load(gguf, threads=1) as in_llama:
        yield in_torch, in_llama


def test_import_slm_loads_nothing():
    heavy = ["torch", "numpy", "llama_cpp", "slm.data", "slm.train"]
    code = f"import slm, sys; print([each for each in {heavy} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", slm.__all__)
def test_every_name_is_there(name):
    found = getattr(slm, name)
    assert callable(found)
    assert found.__doc__
    assert name in dir(slm)


def test_stages_are_packages_and_functions():
    from slm.train import start

    assert isinstance(slm.train, types.ModuleType)
    assert slm.train.start is start


def test_both_engines_compute_the_same(models):
    in_torch, in_llama = models
    assert "torch" in repr(in_torch)
    assert "llama.cpp" in repr(in_llama)
    text = "Once upon a time there was a fox."
    assert in_torch.tokenizer.encode(text) == in_llama.tokenizer.encode(text)
    assert in_llama.tokenizer.decode(in_llama.tokenizer.encode(text)) == text
    said = [each.generate(text, max_tokens=12, temperature=0) for each in models]
    assert said[0] == said[1]
    scores = [each.perplexity(text * 60) for each in models]  # the token before the first one differs
    assert scores[0].bits_per_byte == pytest.approx(scores[1].bits_per_byte, rel=1e-3)
    assert scores[0].tokens == scores[1].tokens
    one, other = (each.embed([text, "A king"]) for each in models)
    assert one.shape == other.shape
    assert np.allclose((one * other).sum(axis=1), 1, atol=1e-3)
    asked = [{"role": "user", "content": "Who is it?"}]
    answers = [each.chat(asked, max_tokens=8, temperature=0) for each in models]
    assert answers[0] == answers[1] == in_torch.chat("Who is it?", max_tokens=8, temperature=0)


def test_pieces_add_up_and_a_seed_repeats_a_text(models):
    for model in models:
        whole = model.generate("The é", max_tokens=20, seed=3)
        assert "".join(model.generate("The é", max_tokens=20, seed=3, stream=True)) == whole
        assert model.generate("The é", max_tokens=20, seed=4) != whole
        assert model.generate("", max_tokens=3, seed=1)


def test_mistakes_are_one_line(models):
    for model in models:
        with pytest.raises(slm.Error, match=r"the prompt has \d+ tokens, and the context of"):
            model.generate("word " * 400)
        with pytest.raises(slm.Error, match="did you mean 'temperature'"):
            model.generate("a", temprature=1)
        with pytest.raises(slm.Error, match="top_p is between 0 and 1"):
            model.generate("a", top_p=2)
        with pytest.raises(slm.Error, match="at least two tokens"):
            model.perplexity("")
    with pytest.raises(slm.Error, match=r"there is no file nothing\.gguf"):
        slm.load("nothing.gguf")
    with pytest.raises(slm.Error, match="no run nothing"):
        slm.load("nothing")


def test_sampling_keeps_what_its_filters_say():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    random = np.random.default_rng(0)

    def seen(**fields):
        return {Sampling(**fields).choose(logits, random) for _ in range(200)}

    everything = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    assert seen(**everything) == {0, 1, 2, 3}
    assert seen(**everything | {"top_k": 2}) == {0, 1}
    assert seen(**everything | {"top_p": 0.6}) == {0, 1}
    assert seen(**everything | {"min_p": 0.25}) == {0, 1, 2}
    assert seen(**everything | {"temperature": 0}) == {0}


def test_stop_strings_are_found_across_pieces():
    assert "".join(_until(iter(["ab", "c<", "en", "d>x"]), ("<end>",))) == "abc"
    assert "".join(_until(iter(["a<", "b"]), ("<end>",))) == "a<b"
    assert list(_until(iter(["stop"]), ("stop",))) == []


def test_the_words_of_a_command(tmp_path):
    words = jobs._words(
        model=tmp_path / "a b",
        budget=None,
        train__max_steps=5,
        name="it's",
        resume=True,
        quant="q8_0",
        **{"a.b": [1, "x"]},
    )
    assert words == [
        f"model={tmp_path}/a b",
        "train.max_steps=5",
        "name='it\\'s'",
        "resume=true",
        "quant=q8_0",
        "a.b=[1,'x']",
    ]


def test_a_command_that_fails_raises_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(slm.Error, match=r"there is no file or folder notes/;"):
        slm.train("notes/", show=False)


def test_a_server_for_a_block(files):
    import urllib.request

    with slm.serve(files[1], serve__threads=1) as url, urllib.request.urlopen(f"{url}/models") as answer:
        assert json.load(answer)["data"]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}/models")
    with pytest.raises(slm.Error, match=r"no such|there is no|does not exist"), slm.serve("nothing.gguf"):
        pass


def test_runs_and_what_they_hold(tmp_path):
    assert slm.runs(tmp_path / "none") == []
    root = tmp_path / "mine"
    (root / "checkpoints" / "step-00000002").mkdir(parents=True)
    (root / "checkpoints" / "step-00000002" / "config.json").write_text("{}")
    (root / "config.yaml").write_text("name: mine\n")
    rows = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "val_loss": 2.5}]
    (root / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    (run,) = slm.runs(tmp_path)
    assert (run.name, run.config["name"], len(run.metrics), len(run.checkpoints), run.ggufs) == (
        "mine",
        "mine",
        3,
        1,
        [],
    )
    assert [len(line.get_xdata()) for line in run.plot().axes[0].lines] == [2, 1]
