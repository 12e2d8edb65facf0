import pytest

from slm.llama.errors import LlamaError
from slm.llama.model import Model


def test_llama_cpps_own_reason_is_told(tiny_path, tmp_path):
    raw = tiny_path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight")
    (tmp_path / "renamed.gguf").write_bytes(raw)
    with pytest.raises(LlamaError, match=r"blk\.1\.ffn_up"):
        Model(tmp_path / "renamed.gguf")
