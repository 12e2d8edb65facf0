import shutil

import gguf
import numpy as np
import pytest

from slm.data.errors import UserError
from slm.llama.model import Model
from slm.serve.pool.memory_plan import read_facts
from slm.serve.pool.model_files import named_models, resolve_model


@pytest.fixture
def run(tmp_path, tiny_path):
    folder = tmp_path / "run" / "gguf"
    folder.mkdir(parents=True)
    for name, padding in (("m-F16", 500), ("m-Q8_0", 400), ("m-Q4_K_M", 300), ("m-Q2_K", 100)):
        (folder / f"{name}.gguf").write_bytes(b"x" * padding)
    (folder / "imatrix.gguf").write_bytes(b"x")
    return tmp_path / "run"


def test_a_file_is_itself(tiny_path):
    assert resolve_model(str(tiny_path)) == (tiny_path, None)


def test_the_preferred_quantization_of_a_run(run):
    path, note = resolve_model(str(run))
    assert path.name == "m-Q4_K_M.gguf"
    assert "of 4 exported files" in note
    path.unlink()
    assert resolve_model(str(run))[0].name == "m-Q8_0.gguf"
    (run / "gguf" / "m-Q8_0.gguf").unlink()
    path, note = resolve_model(str(run))
    assert path.name == "m-Q2_K.gguf"
    assert "smallest" in note


def test_a_model_directory_with_a_gguf_folder(run):
    (run / "config.json").write_text("{}")
    assert resolve_model(str(run))[0].name == "m-Q4_K_M.gguf"
    assert resolve_model(str(run / "gguf"))[0].name == "m-Q4_K_M.gguf"


def test_nothing_to_serve(run, tmp_path):
    with pytest.raises(UserError, match=r"did you mean 'm-Q8_0\.gguf'"):
        resolve_model(str(run / "gguf" / "m-Q8.gguf"))
    shutil.rmtree(run / "gguf")
    (run / "checkpoints").mkdir()
    with pytest.raises(UserError, match="make export MODEL="):
        resolve_model(str(run))
    with pytest.raises(UserError, match="does not exist"):
        resolve_model(str(tmp_path / "nowhere"))


def test_names(tiny_path, chat_path, tmp_path):
    def names(*given):
        return named_models(*given)[0]

    assert names(str(tiny_path), None, []) == {"tiny": tiny_path}
    assert names(str(tiny_path), "mine", [str(chat_path)]) == {"mine": tiny_path, "tiny-chat": chat_path}
    assert list(names(None, None, [f"b={chat_path}", str(tiny_path)])) == ["b", "tiny"]
    assert names(str(tiny_path), None, [str(tiny_path)]) == {"tiny": tiny_path}
    other = tmp_path / "tiny.gguf"
    shutil.copy(tiny_path, other)
    with pytest.raises(UserError, match="two models are called tiny"):
        names(str(tiny_path), None, [str(other)])
    assert list(names(str(tiny_path), None, [f"other={other}"])) == ["tiny", "other"]
    # A path may hold the sign itself.
    odd = tmp_path / "a=b.gguf"
    shutil.copy(tiny_path, odd)
    assert names(None, None, [str(odd)]) == {"a=b": odd}
    for bad in ("default", "a b", "", "-x" * 200):
        with pytest.raises(UserError, match="cannot be a model's name"):
            names(None, None, [f"{bad}={tiny_path}"])
    with pytest.raises(UserError, match="does not exist"):
        names(str(tiny_path), None, ["nowhere.gguf"])
    with pytest.raises(UserError, match=r"serve\.models=\[mine=PATH\]"):
        names(None, "mine", [str(tiny_path)])


def split(path, source, n):
    """A model's tensors in ``n`` files, as llama.cpp's tool and gguf's writer split them; the parts, in order."""
    reader = gguf.GGUFReader(source)
    most = -(-len(reader.tensors) // n)
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=most)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[0]
            writer.add_key_value(
                field.name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            )
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(path.parent.glob(f"{path.stem}-0*"))


def test_a_split_model_is_served_from_its_first_part(tmp_path, tiny_path):
    folder = tmp_path / "run" / "gguf"
    folder.mkdir(parents=True)
    first, second, third = split(folder / "big-Q5_K.gguf", tiny_path, 3)
    (folder / "mmproj-f16.gguf").write_bytes(b"x")
    assert resolve_model(str(tmp_path / "run")) == (first, None)
    assert list(named_models(str(tmp_path / "run"), None, [])[0]) == ["big-Q5_K"]
    (folder / "small-Q2_K.gguf").write_bytes(b"x" * (first.stat().st_size + 1))
    assert resolve_model(str(tmp_path / "run"))[0].name == "small-Q2_K.gguf"  # smaller than the three together
    whole, facts = read_facts(tiny_path), read_facts(first)
    assert (facts.n_params, facts.size_bytes, facts.kv_values) == (whole.n_params, whole.size_bytes, whole.kv_values)
    with Model(first) as model:
        assert model.n_params == whole.n_params
    with pytest.raises(UserError, match=r"is part 2 of 3 of a model: name the first, big-Q5_K-00001-of-00003\.gguf"):
        read_facts(second)
    third.unlink()
    with pytest.raises(UserError, match=r"big-Q5_K-00003-of-00003\.gguf is not next to it"):
        Model(first)


def test_a_projector_is_no_model(tmp_path):
    path = tmp_path / "vision.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_tensor("v.patch_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match="no model by itself: name the GGUF file of the language model"):
        Model(path)
