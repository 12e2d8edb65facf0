import struct
import subprocess
import sys

import pytest

from slm.data.errors import UserError
from slm.llama.model import Model, unfinished_character
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


def test_what_a_grammar_must_not_pick(model, tmp_path):
    chatty = tiny_gguf.write(tmp_path / "chatty.gguf", chat_template=tiny_gguf.CHAT_TEMPLATE)
    with Model(chatty) as chat:
        names = {chat.spellings[token] for token in chat.grammar_banned}
    assert names == {b"\0", b"<|im_start|>"}  # the other two end a text
    assert [model.spellings[token] for token in model.grammar_banned] == [b"\0"]
    # Byte tokens: those that may begin a character, and no others.
    begins = {token for token in range(256) if model.starts_character[token]}
    assert begins == {byte for byte in range(256) if byte < 0x80 or 0xC2 <= byte <= 0xF4}


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


def test_an_unfinished_character_goes_on_exactly_where_text_can():
    assert unfinished_character(b"", "é🙂".encode()) == b""
    assert unfinished_character(b"\xf0\x9f", b"\x99") == b"\xf0\x9f\x99"
    for pending, piece in (
        (b"", b"\x80"), (b"", b"\xc0"), (b"\xc3", b"a"), (b"\xe0", b"\x80"), (b"\xed", b"\xa0"), (b"\xf4", b"\x90"),
        (b"", b"\xff"),
    ):  # fmt: skip
        assert unfinished_character(pending, piece) is None
    # Whatever is left over can be completed.
    for first in range(0xC2, 0xF5):
        todo = [bytes([first])]
        while todo:
            rest = todo.pop()
            following = [unfinished_character(rest, bytes([byte])) for byte in range(0x80, 0xC0)]
            assert any(each is not None for each in following), rest
            todo += [each for each in following if each]
