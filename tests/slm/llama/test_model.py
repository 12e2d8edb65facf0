import codecs
import struct
import subprocess
import sys

import numpy as np
import pytest

from slm.data.errors import UserError
from slm.llama.model import Model
from tests.helpers import tiny_gguf


def test_model_facts(model):
    assert model.n_ctx_train == 512
    assert model.n_embd == 256
    assert model.bos == model.eos == model.n_vocab - 1
    assert not model.add_bos
    assert model.chat_template() is None
    assert model.metadata()["general.architecture"] == "llama"
    assert model.is_eog(model.eos)
    assert not model.is_eog(0)


@pytest.mark.parametrize("text", ["", "hello the bird", "naïve 東京 🙂\x00\t  x", "a" * 5000, "\ud800!"])
def test_tokenize_round_trip(model, text):
    ids = model.tokenize(text, add_special=False, parse_special=False)
    back = b"".join(model.token_to_piece(i) for i in ids).decode()
    assert back == text.replace("\ud800", "\ufffd")


def test_special_tokens_are_text_unless_parsed(model):
    text = "<|endoftext|>"
    assert model.tokenize(text, add_special=False, parse_special=True) == [model.eos]
    ids = model.tokenize(text, add_special=False, parse_special=False)
    assert model.eos not in ids
    assert len(ids) > 1
    assert model.token_to_piece(model.eos) == b""
    assert model.token_to_piece(model.eos, special=True) == text.encode()


def allowed(tokenizer, grammar):
    """Ids of the tokens with which a text of a regular expression may begin."""
    from llguidance import LLMatcher

    mask = np.frombuffer(LLMatcher(tokenizer, LLMatcher.grammar_from_regex(grammar)).compute_bitmask(), np.uint8)
    return set(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist())


def test_a_grammar_reads_the_models_own_tokens(model, tmp_path):
    """The ids and bytes are llama.cpp's; what adds no text to a reply is no text of a grammar."""
    tokenizer = model.grammar_tokenizer
    for text in ("hello world", '{"name": "é 日本", "n": [1, 2]}\n', "<|endoftext|>", " x"):
        assert tokenizer.tokenize_str(text) == model.tokenize(text, add_special=False, parse_special=False)
    everything = allowed(tokenizer, "(?s:.)*")
    hidden = {token for token in range(model.n_vocab) if not model.token_to_piece(token)}
    ends = {token for token in range(model.n_vocab) if model.is_eog(token)}
    starts = {token for token in range(model.n_vocab) if begins_text(model.token_to_piece(token))}
    assert everything == (starts - hidden) | ends
    assert ends
    chatty = tiny_gguf.write(tmp_path / "chatty.gguf", chat_template=tiny_gguf.CHAT_TEMPLATE)
    with Model(chatty) as chat:
        shown = {chat.spellings[token] for token in allowed(chat.grammar_tokenizer, "(?s:.)*")}
        assert b"<|im_start|>" not in shown


def begins_text(piece):
    """Whether a token's bytes are UTF-8 from the first on; the last character may be unfinished."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(piece)
    except UnicodeDecodeError:
        return False
    return not (piece[:1] == b"\xed" and piece[1:2] >= b"\xa0")


def test_missing_and_damaged_files(tiny_path, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        Model(tmp_path / "none.gguf")
    with pytest.raises(UserError, match="directory"):
        Model(tmp_path)
    raw = tiny_path.read_bytes()
    bad = tmp_path / "bad.gguf"

    def refused(content, match):
        bad.write_bytes(content)
        with pytest.raises(UserError, match=match):
            Model(bad)

    refused(b"", "0 bytes")
    refused(b"PK\x03\x04" + raw[4:], "starts with")
    refused(raw[: len(raw) // 2], "ends at byte")
    refused(raw[:300], "left|past the end")
    refused(raw[:8] + struct.pack("<Q", 2**62) + raw[16:], "left")
    refused(raw[:16] + struct.pack("<Q", 2**63) + raw[24:], "left")
    # A string array that claims 2^63 elements.
    key = b"tokenizer.ggml.tokens"
    at = raw.index(key) + len(key) + 8
    refused(raw[:at] + struct.pack("<Q", 2**63) + raw[at + 8 :], "tokens")
    at = raw.index(b"token_embd.weight") + len("token_embd.weight") + 4
    refused(raw[:at] + struct.pack("<q", 2**40) + raw[at + 8 :], "token_embd")
    refused(raw[:at] + struct.pack("<q", -256) + raw[at + 8 :], "shape")


def test_importing_is_light_and_quiet(tiny_path):
    code = (
        "import sys; from slm.llama.model import Model; m = Model(sys.argv[1]); m.close(); "
        "print([n for n in ('torch', 'transformers', 'datasets') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tiny_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert done.stderr == ""
