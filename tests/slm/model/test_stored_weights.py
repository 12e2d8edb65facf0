"""Model directories as other people's programs write them: read as the model that they are, or named."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slm.data.errors import UserError
from slm.model import resize, stored_weights
from slm.model.checkpoint import load_config, load_model, load_weights, save_model
from slm.model.config import ModelConfig
from slm.model.held.held_model import load_as_stored
from slm.model.stored_weights import stream_weights
from slm.model.transformer import LanguageModel

SHAPE = dict(vocab_size=96, n_layers=1, d_model=32, n_heads=2, n_kv_heads=1, head_dim=16, ffn_dim=64, seq_len=64)
HEAD, TABLE, QUERY = "lm_head.weight", "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"


def saved(folder: Path, *, tied: bool = True, change=lambda weights: weights, **config) -> Path:
    """A Llama's directory with its tensors changed."""
    torch.manual_seed(7)
    folder.mkdir(exist_ok=True)
    save_model(folder, LanguageModel(ModelConfig(tie_embeddings=tied, **SHAPE)))
    path = folder / "model.safetensors"
    weights = {name: tensor.clone() for name, tensor in change(load_file(path)).items()}
    save_file(weights, path, {"format": "pt"})
    settings = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def logits(model: LanguageModel) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.arange(20)[None])


def test_a_head_of_its_own_is_not_lost(tmp_path, capsys):
    """transformers takes the head that is stored, too, where it was told tie_word_embeddings=false."""
    head = torch.randn(96, 32)
    folder = saved(tmp_path, change=lambda w: w | {HEAD: head})
    shape = load_config(folder)
    assert not shape.tie_embeddings
    assert "holds an untied head: the model is read as untied" in capsys.readouterr().out
    model = load_model(folder)
    assert torch.equal(model.head_weight_VD, head)
    assert capsys.readouterr().out == ""  # said once
    assert torch.equal(resize.load_model(folder, shape).head_weight_VD, head)
    same = saved(tmp_path / "same", change=lambda w: w | {HEAD: w[TABLE]})
    assert load_config(same).tie_embeddings
    assert load_model(same).head_weight_VD.shape == (96, 32)


def test_the_one_matrix_under_the_heads_name(tmp_path):
    plain = load_model(saved(tmp_path / "plain"))
    renamed = saved(tmp_path, change=lambda w: {HEAD if name == TABLE else name: v for name, v in w.items()})
    assert torch.equal(logits(load_model(renamed)), logits(plain))
    assert torch.equal(logits(resize.load_model(renamed, load_config(renamed))), logits(plain))
    without = saved(tmp_path, tied=False, change=lambda w: {name: v for name, v in w.items() if name != HEAD})
    with pytest.raises(UserError, match=r"lacks the tensor lm_head\.weight, .*write tie_word_embeddings=true"):
        load_model(without)


@pytest.mark.parametrize(
    "prefix",
    [
        "_orig_mod.",
        "module.",
        "base_model.model.",
        "module._orig_mod.",
        "transformer.",
        "model.",
        "module.student.net.",
    ],
)
def test_the_prefix_of_a_wrapper_is_left_out(prefix, tmp_path, capsys):
    plain = load_model(saved(tmp_path / "plain"))
    wrapped = saved(tmp_path, change=lambda w: {prefix + name: tensor for name, tensor in w.items()})
    assert torch.equal(logits(load_model(wrapped)), logits(plain))
    assert "the names of its tensors begin with " in capsys.readouterr().out


def test_a_layer_under_the_name_that_an_adapter_gives_it(tmp_path):
    plain = load_model(saved(tmp_path / "plain"))
    base = QUERY.replace("weight", "base_layer.weight")
    folder = saved(
        tmp_path, change=lambda w: {f"base_model.model.{base if n == QUERY else n}": v for n, v in w.items()}
    )
    assert torch.equal(logits(load_model(folder)), logits(plain))


def test_a_model_that_was_saved_without_its_outer_name(tmp_path):
    plain = load_model(saved(tmp_path / "plain"))
    inner = saved(tmp_path, change=lambda w: {name.removeprefix("model."): tensor for name, tensor in w.items()})
    assert torch.equal(logits(load_model(inner)), logits(plain))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("bitsandbytes", lambda w: w | {QUERY + ".absmax": torch.ones(4)}),
        ("GPTQ or AWQ", lambda w: w | {QUERY.replace("weight", "qweight"): torch.zeros(4, 32, dtype=torch.int32)}),
        ("HQQ", lambda w: w | {QUERY.replace("weight", "W_q"): torch.zeros(4, 32, dtype=torch.uint8)}),
        ("FP8", lambda w: w | {QUERY: w[QUERY].to(torch.float8_e4m3fn)}),
        ("FP8", lambda w: w | {QUERY: w[QUERY].to(torch.float8_e5m2fnuz)}),
        ("another program", lambda w: w | {QUERY: (w[QUERY] * 100).to(torch.int8)}),
    ],
)
def test_a_quantized_checkpoint_is_named(kind, change, tmp_path):
    folder = saved(tmp_path, change=change)
    with pytest.raises(
        UserError, match=f"the checkpoint is quantized by {kind}, .*give the model that it was made from"
    ):
        load_model(folder)


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "is a git-lfs pointer, not the model: run"),
        (b"<!DOCTYPE html><html>", "is a web page, not a model"),
        (b"", "cannot be read: .*download or save it again"),
    ],
)
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_what_is_no_model_is_named(tmp_path, held, says, name):
    (saved(tmp_path) / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(held)
    with pytest.raises(UserError, match=says):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_links_to_nothing_are_named(name, tmp_path):
    folder = saved(tmp_path)
    (folder / name).unlink()
    (folder / name).symlink_to("../../blobs/abc")
    with pytest.raises(UserError, match=rf"{name} is a link to ../../blobs/abc, where there is no file: copy .*cp -rL"):
        load_model(folder)


def test_a_link_to_nothing_among_the_shards_and_a_folder_in_place_of_weights_are_named(tmp_path):
    folder = saved(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    with pytest.raises(UserError, match=r"model.safetensors is a folder, and no file of weights"):
        load_model(folder)
    (folder / "model.safetensors").rmdir()
    part = "model-00001-of-00001.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {TABLE: part}}))
    (folder / part).symlink_to("nowhere")
    with pytest.raises(UserError, match=rf"{part} is a link to nowhere, where there is no file"):
        load_model(folder)


def test_a_name_that_is_not_utf8_is_named(tmp_path):
    folder = tmp_path / os.fsdecode(b"na\xefve")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system holds only names in UTF-8")
    saved(tmp_path)
    for each in ("config.json", "model.safetensors"):
        (tmp_path / each).rename(folder / each)
    with pytest.raises(UserError, match=r"na.xefve.*is not UTF-8: rename the folder"):
        load_model(folder)


def test_an_adapter_is_named(tmp_path):
    base = QUERY.replace("weight", "base_layer.weight")
    more = {QUERY.replace("weight", f"lora_{each}.default.weight"): torch.ones(2, 2) for each in "AB"}
    folder = saved(
        tmp_path,
        change=lambda w: {
            f"base_model.model.{base if name == QUERY else name}": tensor for name, tensor in (w | more).items()
        },
    )
    for read in (load_model, lambda folder: list(stream_weights(folder, tied=True))):
        with pytest.raises(UserError, match=r"holds an adapter beside the weights .*lora_A.*merge_and_unload"):
            read(folder)
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="holds an adapter and no model: merge it into its base"):
        load_model(folder)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("shards", [1, 2])
def test_pickled_tensors_are_read_as_tensors(tmp_path, zipped, shards):
    plain = saved(tmp_path)
    weights = load_weights(plain)
    (plain / "model.safetensors").unlink()
    parts = [dict(list(weights.items())[n::shards]) for n in range(shards)]
    names = ["pytorch_model.bin"] if shards == 1 else [f"pytorch_model-0000{n}-of-00002.bin" for n in (1, 2)]
    for name, part in zip(names, parts, strict=True):
        torch.save(part, plain / name, _use_new_zipfile_serialization=zipped)
    if shards == 2:
        index = {key: name for name, part in zip(names, parts, strict=True) for key in part}
        (plain / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    found = load_weights(plain)
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
    if shards == 2:
        (plain / names[1]).unlink()
        with pytest.raises(UserError, match=rf"lacks {names[1]}, which its pytorch_model\.bin\.index\.json names"):
            load_weights(plain)


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_weights_among_a_training_programs_state_are_read(key, tmp_path):
    weights = load_weights(saved(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    torch.save({key: weights, "epoch": 3, "optimizer": {"state": {}}}, tmp_path / "pytorch_model.bin")
    found = load_weights(tmp_path)
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())


@pytest.mark.parametrize("shards", [1, 2])
def test_a_head_of_its_own_in_a_bin_is_not_lost(tmp_path, shards, capsys):
    head = torch.randn(96, 32)
    weights = load_weights(saved(tmp_path)) | {HEAD: head}
    (tmp_path / "model.safetensors").unlink()
    if shards == 1:
        torch.save(weights, tmp_path / "pytorch_model.bin")
    else:
        parts = {"a.bin": {HEAD: head}, "b.bin": {name: each for name, each in weights.items() if name != HEAD}}
        for name, part in parts.items():
            torch.save(part, tmp_path / name)
        index = {key: name for name, part in parts.items() for key in part}
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    assert torch.equal(load_model(tmp_path).head_weight_VD, head)
    assert "holds an untied head: the model is read as untied" in capsys.readouterr().out


class Malice:
    """Unpickled, it leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (open, (str(self.mark), "w"))


@pytest.mark.parametrize(
    "write", [lambda obj, path: path.write_bytes(pickle.dumps(obj)), torch.save], ids=["raw", "zip"]
)
def test_code_in_a_pickle_is_not_run(tmp_path, write):
    folder = saved(tmp_path)
    (folder / "model.safetensors").unlink()
    write({"weight": Malice(tmp_path / "mark")}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin holds more than tensors, which would have to be run"):
        load_weights(folder)
    assert not (tmp_path / "mark").exists()
    torch.save([1, 2], folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="does not hold a model's tensors by name"):
        load_weights(folder)
    (folder / "pytorch_model.bin").rename(folder / "other.pt")
    with pytest.raises(UserError, match=r"holds other\.pt but no model\.safetensors"):
        load_weights(folder)


def test_a_line_is_printed_once(capsys):
    for _ in range(2):
        stored_weights.note_own_head("somewhere")
    assert capsys.readouterr().out.count("\n") == 1


def test_shards_are_read_a_tensor_at_a_time(tmp_path, monkeypatch):
    """A tuning that must fit into little memory reads a model of several files by tensor, too."""
    weights = load_file(saved(tmp_path, tied=False) / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, tmp_path / file, {"format": "pt"})
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    monkeypatch.setattr(stored_weights, "load_file", None)
    found = dict(stream_weights(tmp_path, tied=False))
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(b"{")
    with pytest.raises(UserError, match=r"model-00002-of-00002\.safetensors cannot be read"):
        dict(stream_weights(tmp_path, tied=False))


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/passwd", "weights/part.safetensors"])
def test_an_index_names_files_of_its_own_folder_alone(tmp_path, name):
    saved(tmp_path / "model", tied=False)
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "model" / "part.safetensors")
    weight_map = {"a": "part.safetensors", "b": name}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(UserError, match=r"index\.json names '.*', which is no file of its folder"):
        load_weights(tmp_path / "model")


def test_shards_without_their_index_are_read_where_all_are_there(tmp_path):
    plain = load_model(saved(tmp_path))
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    for number, names in ((1, list(weights)[::2]), (2, list(weights)[1::2])):
        part = {name: weights[name] for name in names}
        save_file(part, tmp_path / f"model-0000{number}-of-00002.safetensors", {"format": "pt"})
    assert torch.equal(logits(load_model(tmp_path)), logits(plain))
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match=r"holds model-00002-of-00002\.safetensors and no model\.safetensors"):
        load_model(tmp_path)


def test_weights_by_another_name_are_named(tmp_path):
    (saved(tmp_path) / "model.safetensors").rename(tmp_path / "weights.safetensors")
    with pytest.raises(UserError, match=r"holds weights\.safetensors and no model\.safetensors: if these are"):
        load_model(tmp_path)
    save_file({"x": torch.zeros(1)}, tmp_path / "more.safetensors")
    with pytest.raises(UserError, match=r"holds more\.safetensors, weights\.safetensors and neither"):
        load_model(tmp_path)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("prefix", ["language_model.", "model.language_model."])
def test_the_text_model_of_one_that_sees(prefix, tied, tmp_path, capsys):
    def inside(name: str) -> str:
        if prefix == "language_model.":
            return prefix + name
        return name if name == HEAD else prefix + name.removeprefix("model.")

    plain = load_model(saved(tmp_path / "plain", tied=tied))
    found = load_model(saved(tmp_path, tied=tied, change=lambda w: {inside(name): v for name, v in w.items()}))
    assert torch.equal(logits(found), logits(plain))
    assert f"begin with {prefix!r}" in capsys.readouterr().out


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_that_are_not_finite_are_named_before_training(value, dtype, tmp_path):
    def spoiled(weights):
        weights = {name: each.to(dtype) for name, each in weights.items()}
        weights[QUERY][3, 5:7] = value
        return weights

    folder = saved(tmp_path, change=spoiled)
    with pytest.raises(UserError, match=rf"tensor {QUERY} holds 2 values that are no finite numbers"):
        load_model(folder)
    with pytest.raises(UserError, match=r"holds 2 values that are no finite numbers"):
        load_as_stored(folder)


def test_configurations_as_editors_and_downloads_leave_them(tmp_path):
    folder = saved(tmp_path)
    shape, path = load_config(folder), folder / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_config(folder) == shape
    settings = json.loads(path.read_text(encoding="utf-8-sig"))
    same = {"hidden_act": "swish", "quantization_config": {}, "eos_token_id": -1, "bos_token_id": -1}
    for name in (None, "LlamaModel"):
        path.write_text(json.dumps({**settings, **same, "architectures": name and [name]}))
        assert load_config(folder) == shape
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 984\n")
    with pytest.raises(UserError, match=r"config\.json is a git-lfs pointer"):
        load_config(folder)
