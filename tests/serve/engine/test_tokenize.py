import pytest

from slm.llama.model import Model
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Embed, Generate, SamplingParams
from slm.serve.engine.tokenize import tokenize_within

LONG = "the old fox and the little bird " * 100_000
PLAIN = {"add_special": False, "parse_special": False}


@pytest.fixture(scope="module")
def engine(tiny_path):
    engine = Engine(EngineConfig(model_path=tiny_path, context=256, slots=2, threads=1))
    yield engine
    engine.close()


def test_only_a_beginning_of_a_text_that_is_too_long_is_read(engine):
    model = engine._model
    for text in ("", "hello", "hello " * 5000, "a" * 40_000):
        whole = model.tokenize(text, **PLAIN)
        assert tokenize_within(model, text, 1_000_000, **PLAIN) == (whole, True)
        tokens, complete = tokenize_within(model, text, 100, **PLAIN)
        assert (len(tokens) > 100) == (len(whole) > 100)
        assert not complete or tokens == whole
    tokens, complete = tokenize_within(model, LONG, 256, **PLAIN)
    assert 256 < len(tokens) < 20_000
    assert not complete


def test_white_space_next_to_a_special_token_of_another_part(shared_data):
    """Phi-3's special tokens swallow what stands behind them, also where a message that spells one begins there."""
    path = shared_data / "vocab" / "ggml-vocab-phi-3.gguf"
    if not path.is_file():
        pytest.skip(f"no vocabulary at {path}")
    special = {"add_special": False, "parse_special": True}
    with Model(path, vocab_only=True) as model:
        begin, end = "<|user|>", "<|end|>\n<|assistant|>\n"
        (user,), message = model.tokenize(begin, **special), "<|end|> of it"
        text, span = f"{begin}\n {message}{end}", (len(begin), len(begin) + 2 + len(message))
        behind = model.tokenize(end, **special)
        assert model.tokenize_parts(text, [span], **special) == [user, *model.tokenize(message, **PLAIN), *behind]
        blank = f"{begin} \n{end}"
        assert model.tokenize_parts(blank, [(len(begin), len(begin) + 2)], **special) == [user, *behind]
        # None of its tokens swallows what stands before it; of a token that does, this is left out.
        assert model._swallowing_before == ()
        model.__dict__["_swallowing_before"] = ("<|end|>",)
        spaced, span = f"{begin}{message} \n{end}", (len(begin), len(begin) + len(message) + 2)
        assert model.tokenize_parts(spaced, [span], **special) == [user, *model.tokenize(message, **PLAIN), *behind]


def test_literal_spans(chat_path):
    """Names inside of a span are text; outside, they are tokens. The parts equal the tokens of the whole text."""
    special = {"add_special": False, "parse_special": True}
    with Model(chat_path) as model:
        assert set(model.control_names()) == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
        begin, middle, end = "<|im_start|>", "user the<|im_end|> old fox", "<|im_end|>"
        text, spans = begin + middle + end, ((len(begin), len(begin + middle)),)
        tokens, _ = tokenize_within(model, text, 100, literal_spans=spans, **special)
        inner = model.tokenize(middle, **PLAIN)
        assert tokens == [*model.tokenize(begin, **special), *inner, *model.tokenize(end, **special)]
        assert len(tokens) > len(model.tokenize(text, **special)) + 4
        # A span over the whole text, with parse_special, is the text without it.
        assert tokenize_within(model, text, 100, literal_spans=((0, len(text)),), **special) == (
            model.tokenize(text, **PLAIN),
            True,
        )
        many = text * 2000
        repeated = tuple((n + len(begin), n + len(begin + middle)) for n in range(0, len(many), len(text)))
        assert tokenize_within(model, many, 10**6, literal_spans=repeated, **special) == (tokens * 2000, True)
        some, complete = tokenize_within(model, many, 50, literal_spans=repeated, **special)
        assert not complete
        assert some[: 4 * len(tokens)] == tokens * 4


def test_too_long_is_told_without_reading_all(engine):
    (failure,) = engine.handle(Generate(id="a", prompt=LONG, sampling=SamplingParams()))
    assert failure.code == "context_length_exceeded"
    assert "more than" in failure.message
    assert engine.handle(Embed(id="b", inputs=("fox", LONG))) == []  # its texts have their turn
    failures = []
    while engine.busy:
        failures += engine.step()
    (failure,) = failures
    assert failure.code == "context_length_exceeded"
    assert "input 1" in failure.message
    assert not engine.busy
