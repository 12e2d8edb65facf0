"""Special tokens that change what stands next to them: ids as transformers gives them, in whole texts and in parts."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from slm.data.tokenizers.parts import PartEncoder, has_odd_tokens, space_before
from slm.data.tokenizers.tokenizer import EOT, Tokenizer, tokenizer_config
from slm.data.tokenizers.train_bpe import train

TEXTS = ["the cat sat on a mat, and it was warm.", "  spaces   and\n\nlines\tof text"] * 30
FLAGS = ("rstrip", "lstrip", "single_word", "normalized")
WORDS = st.sampled_from(
    ["the cat", " sat", "  ", "\n", "\u3000", "é", "a", ".", "<r>", "<l>", "<b>", "<w>", "<n>", "<p>"]
)


def byte_level() -> dict:
    return json.loads(train(iter(TEXTS), vocab_size=300)["tokenizer.json"])


def sentencepiece(space: str) -> dict:
    """A BPE over U+2581 with bytes, as transformers has Llama's."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁thecasonmi,dwr.", "th", "▁th", "at", "▁c", "▁▁"]
    pairs = [("t", "h"), ("▁", "th"), ("a", "t"), ("▁", "c"), ("▁", "▁")]
    model = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    model |= {"vocab": {piece: id for id, piece in enumerate(pieces)}, "merges": [list(pair) for pair in pairs]}
    made = Backend.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    if space == "prepend":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=space, split=False)
    return json.loads(made.to_str()) | {"decoder": {"type": "Metaspace", "replacement": "▁"}}


def with_odd_tokens(spec: dict, *, flags: bool = True) -> Tokenizer:
    backend = Backend.from_str(json.dumps(spec))
    backend.add_special_tokens([AddedToken(EOT, normalized=False)])
    for name, flag in zip(("<r>", "<l>", "<w>", "<n>"), FLAGS, strict=True):
        options = {flag: True} if flags else {}
        backend.add_special_tokens([AddedToken(name, **{"normalized": False, **options})])
    backend.add_special_tokens([AddedToken("<b>", rstrip=flags, lstrip=flags, normalized=False)])
    backend.add_tokens([AddedToken("<p>", special=False, normalized=False)])
    files = {"tokenizer.json": backend.to_str().encode(), "tokenizer_config.json": tokenizer_config(eot=EOT)}
    return Tokenizer(files, name="odd")


KINDS = {
    "bytes": byte_level,
    **{each: lambda each=each: sentencepiece(each) for each in ("prepend", "first", "always")},
}


@pytest.fixture(scope="module", params=KINDS)
def odd(request) -> Tokenizer:
    return with_odd_tokens(KINDS[request.param]())


def theirs(tokenizer: Tokenizer, text: str) -> list[int]:
    """What transformers gives for a rendered template: no token added, special tokens parsed."""
    return Backend.from_str(tokenizer.files["tokenizer.json"].decode()).encode(text, add_special_tokens=False).ids


@settings(max_examples=60, deadline=None)
@given(words=st.lists(WORDS, max_size=8))
def test_a_whole_text_has_the_ids_of_transformers(odd, words):
    text = "".join(words)
    assert PartEncoder(odd).encode(text, (), ()) == [theirs(odd, text)]
    assert odd.encode(text) == odd.encode(text)  # parsing is off again
    assert not set(odd.encode(text)) & odd.special_ids


@settings(max_examples=100, deadline=None)
@given(words=st.lists(st.sampled_from(["the cat", " sat", "  ", "\n", "a", "<r>", "<l>", "<b>", "<p>"]), max_size=8))
def test_a_cut_behind_a_token_and_its_white_space_changes_nothing(odd, words):
    """A template writes a mark, white space, and then the answer: where a mark swallows white space, it is gone."""
    text = "".join(words) + "<r>\n"
    answer = "the mat" + "".join(words)
    parts = PartEncoder(odd).encode(text + answer, (len(text),), ())
    assert [*parts[0], *parts[1]] == theirs(odd, text + answer)
    assert parts[0] == theirs(odd, text)


def test_what_must_stay_text_does_and_what_stands_next_to_it_is_swallowed(odd):
    encoder, ids = PartEncoder(odd), {name: odd._backend.token_to_id(name) for name in ("<r>", "<l>")}
    text = "<r>  a<l>b  <l>"
    (found,) = encoder.encode(text, (), ((3, 12),))
    assert (found[0], found[-1], found.count(ids["<l>"])) == (ids["<r>"], ids["<l>"], 1)
    space = encoder._space == "each"
    plain = odd.encode("a<l>b") if space or encoder._space is None else odd.encode("\na<l>b")[len(odd.encode("\n")) :]
    assert found[1:-1] == plain


def test_text_that_goes_on_gets_no_space(odd):
    encoder = PartEncoder(odd)
    (first, second) = encoder.encode("the cat", (4,), ())
    assert odd.decode([*first, *second]).strip() == "the cat"
    assert second == (odd.encode("cat") if encoder._space is None else odd.encode("\ncat")[len(odd.encode("\n")) :])


def test_only_odd_tokens_are_called_odd():
    assert has_odd_tokens(with_odd_tokens(byte_level()).spec)
    assert not has_odd_tokens(with_odd_tokens(byte_level(), flags=False).spec)
    assert has_odd_tokens(with_odd_tokens(sentencepiece("first"), flags=False).spec)
    assert not has_odd_tokens(with_odd_tokens(sentencepiece("prepend"), flags=False).spec)
    assert [space_before(KINDS[each]()) for each in KINDS] == [None, "each", "first", "each"]
