import numpy as np
import pytest

from slm.llama.context import Batch, Context
from slm.llama.model import Model
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Cancel, Delta, Embed, Failure, Generate, Reply, SamplingParams
from slm.serve.engine.tokenize import tokenize_within

LONG = "a red boat in the river " * 20  # several batches
TEXTS = ("once upon a time", LONG, "x", "the old fox", LONG + "!")


@pytest.fixture(scope="module")
def engine(tiny_path):
    engine = Engine(EngineConfig(model_path=tiny_path, threads=1))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def reference(tiny_path):
    """Text -> the embedding, from one pass over the whole text."""
    with Model(tiny_path) as model, Context(model, n_ctx=512, n_threads=1, embeddings=True) as context:

        def embed(text):
            ids = model.tokenize(text, add_special=True, parse_special=False)
            batch = Batch(512)
            batch.extend(ids, 0, 0, True, every=True)
            context.clear()
            context.decode(batch)
            mean = context.embeddings_all(len(ids)).astype(np.float64).mean(axis=0)
            return mean / np.linalg.norm(mean), len(ids)

        yield embed


def run(engine, *commands):
    events = [event for command in commands for event in engine.handle(command)]
    while engine.busy:
        events += engine.step()
    return events


def vectors(reply):
    assert isinstance(reply, Reply), reply
    return [np.frombuffer(each, "<f4") for each in reply.value.vectors]


def test_an_embedding_that_is_no_number_ends_its_own_request_only(engine, monkeypatch):
    """Its other inputs are in the same batch; they must not take those of others from the queue."""
    compute = Context.embeddings_all

    def broken(self, n):
        rows = compute(self, n)
        rows[0] = np.nan
        return rows

    monkeypatch.setattr(Context, "embeddings_all", broken)
    events = [*engine.handle(Embed(id="a", inputs=("x", "y", "z"))), *engine.handle(Embed(id="b", inputs=("the fox",)))]
    while engine.busy:
        events += engine.step()
        monkeypatch.setattr(Context, "embeddings_all", compute)
    (failed,) = (each for each in events if isinstance(each, Failure))
    assert (failed.id, failed.code) == ("a", "engine_error")
    (reply,) = (each for each in events if isinstance(each, Reply))
    assert reply.id == "b"


def test_the_mean_of_the_last_layer_of_length_one(engine, reference):
    (reply,) = run(engine, Embed(id="a", inputs=TEXTS))
    n_tokens = 0
    for text, vector in zip(TEXTS, vectors(reply), strict=True):
        expected, n = reference(text)
        n_tokens += n
        assert vector.shape == (256,)
        assert abs(np.linalg.norm(vector) - 1) < 1e-5
        np.testing.assert_allclose(vector, expected, atol=2e-3)
    assert reply.value.n_tokens == n_tokens


def test_it_does_not_matter_what_else_is_asked(engine):
    alone = [vectors(run(engine, Embed(id="a", inputs=(text,)))[0])[0] for text in TEXTS]
    generate = Generate(id="g", prompt="hello", sampling=SamplingParams(temperature=0), max_tokens=20)
    text_alone = "".join(event.text for event in run(engine, generate) if isinstance(event, Delta))
    many = [Embed(id=str(i), inputs=(text,) * 9) for i, text in enumerate(TEXTS)]
    events = run(engine, generate, *many)
    replies = {event.id: event for event in events if isinstance(event, Reply)}
    for i, expected in enumerate(alone):
        for vector in vectors(replies[str(i)]):
            np.testing.assert_allclose(vector, expected, atol=2e-3)
    assert "".join(event.text for event in events if isinstance(event, Delta)) == text_alone


def test_generation_goes_on_between_batches(engine):
    generate = Generate(id="g", prompt="hello", sampling=SamplingParams(ignore_eos=True), max_tokens=3)
    for command in (Embed(id="e", inputs=(LONG,) * 8), generate):
        assert engine.handle(command) == []
    order = []
    while engine.busy:
        order += [event.id for event in engine.step()]
    assert order[-1] == "e"
    assert "g" in order


def test_a_canceled_request_leaves_nothing(engine):
    engine.handle(Embed(id="a", inputs=(LONG, LONG)))
    engine.step()
    assert engine.busy
    engine.handle(Cancel(id="a"))
    assert not engine.busy
    (reply,) = run(engine, Embed(id="b", inputs=("x",)))
    assert reply.id == "b"


def test_what_cannot_be_embedded(engine):
    (failure,) = run(engine, Embed(id="a", inputs=((5,) * 513,)))
    assert (type(failure), failure.code) == (Failure, "context_length_exceeded")
    (failure,) = run(engine, Embed(id="b", inputs=("",)))
    assert failure.code == "invalid_request"
    (failure,) = run(engine, Embed(id="c", inputs=((10**6,),)))
    assert failure.code == "invalid_request"
    (reply,) = run(engine, Embed(id="d", inputs=((5,) * 512,)))
    assert reply.value.n_tokens == 512


def test_texts_are_tokenized_when_their_turn_comes(engine, monkeypatch):
    """Thousands of them at once would hold up the streams."""
    tokenized = []

    def counting(model, text, *args, **options):
        tokenized.append(text)
        return tokenize_within(model, text, *args, **options)

    monkeypatch.setattr("slm.serve.engine.embedder.tokenize_within", counting)
    texts = tuple(f"the old fox number {i}" for i in range(300))
    assert engine.handle(Embed(id="a", inputs=texts)) == []
    assert not tokenized
    engine.step()
    assert 0 < len(tokenized) < 60
    (reply,) = run(engine)
    assert len(vectors(reply)) == 300


def test_a_text_too_long_for_the_context_fails_alone(engine):
    inputs = ("x", "y", "too long " * 4000, "z")
    events = run(engine, Embed(id="a", inputs=inputs), Embed(id="b", inputs=("the fox",)))
    (failed,) = (each for each in events if isinstance(each, Failure))
    assert (failed.id, failed.code) == ("a", "context_length_exceeded")
    assert failed.message.startswith("input 2 has more than ")
    assert failed.n_tokens > failed.n_context == 512
    (reply,) = (each for each in events if isinstance(each, Reply))
    assert reply.id == "b"
