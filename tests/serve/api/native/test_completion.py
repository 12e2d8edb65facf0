"""/completion: bodies built from events without a server, and the requests' own names."""

import pytest

from slm.serve.api.native.completion import NativeBuilder, generation_settings
from slm.serve.api.native.requests import InfillRequest, NativeCompletionRequest
from slm.serve.engine.protocol import Delta, ModelInfo, PrefillDone, SamplingParams, TokenLogprob
from tests.helpers.api import error, parsed

INFO = ModelInfo(**{**dict.fromkeys(ModelInfo.__dataclass_fields__, 0), "n_vocab": 100})
ENTRY = TokenLogprob(token=7, piece=b"a", logprob=-0.5, top=((7, b"a", -0.5), (8, b"\xc3", -2.0)), offset=0)
PROBABILITY = {"id": 7, "token": "a", "bytes": [97], "logprob": -0.5}
TOPS = [PROBABILITY, {"id": 8, "token": "\ufffd", "bytes": [0xC3], "logprob": -2.0}]


def fed(finish="stop", stop_string=None, stopped_by=None, **options):
    builder = NativeBuilder(
        model="tiny", prompts=["hi"], n=1, with_logprobs=True, settings={"n_predict": 5, "top_k": 40}, **options
    )
    events = [
        PrefillDone(id="x", prompt_tokens=4, cached_tokens=1, prefill_s=0.1),
        Delta(id="x", text="a\n", tokens=(7, 9), logprobs=(ENTRY,), completion_tokens=2, decode_s=0.1),
        Delta(
            id="x",
            text="b",
            tokens=(8,),
            completion_tokens=3,
            decode_s=0.3,
            finish=finish,
            stop_string=stop_string,
            stopped_by=stopped_by,
        ),
    ]
    chunks = []
    for event in events:
        builder.add(0, event)
        chunks += builder.chunks(0, event)
    return builder, chunks


def test_whole():
    builder, _ = fed(return_tokens=True)
    body = builder.body()
    assert body["content"] == "a\nb"
    assert body["tokens"] == [7, 9, 8]
    assert body["completion_probabilities"] == [{**PROBABILITY, "top_logprobs": TOPS}]
    assert (body["stop_type"], body["stopping_word"], body["truncated"]) == ("eos", "", False)
    assert (body["tokens_evaluated"], body["tokens_predicted"], body["tokens_cached"]) == (4, 3, 1)
    assert body["has_new_line"]
    assert body["timings"]["prompt_n"] == 3
    assert body["timings"]["predicted_per_second"] == pytest.approx(2 / 0.3)  # the first came with the prompt's end
    assert fed()[0].body()["tokens"] == []


def test_streamed():
    builder, (first, second, last) = fed()
    assert (first["content"], first["tokens"], first["stop"]) == ("a\n", [7, 9], False)
    assert first["completion_probabilities"][0]["id"] == 7
    assert second["content"] == "b"
    assert (last["content"], last["tokens"], last["stop"]) == ("", [], True)
    whole = builder.body()
    assert {**whole, "content": "", "completion_probabilities": 0} == {**last, "completion_probabilities": 0}
    assert not builder.ends_in_done


@pytest.mark.parametrize(
    ("finish", "stop_string", "stopped_by", "stop_type", "truncated"),
    [
        ("stop", None, None, "eos", False),
        ("stop", "END", None, "word", False),
        ("length", None, "max_tokens", "limit", False),
        ("length", None, "context", "limit", True),
    ],
)
def test_why_it_stopped(finish, stop_string, stopped_by, stop_type, truncated):
    body = fed(finish, stop_string, stopped_by)[0].body()
    assert (body["stop_type"], body["stopping_word"] or None, body["truncated"]) == (stop_type, stop_string, truncated)


def test_only_some_fields():
    builder, _ = fed(fields=["content", "generation_settings/n_predict", "timings/no", "nothing"])
    assert builder.body() == {"content": "a\nb", "generation_settings/n_predict": 5}


def test_several():
    builder = NativeBuilder(model="tiny", prompts=["p", "q"], n=2, with_logprobs=False, settings={})
    for i in range(4):
        builder.add(i, PrefillDone(id="x", prompt_tokens=1))
        builder.add(i, Delta(id="x", text=str(i), completion_tokens=1, finish="stop"))
    assert [(each["index"], each["prompt"], each["content"]) for each in builder.body()] == [
        (0, "p", "0"),
        (1, "p", "1"),
        (2, "q", "2"),
        (3, "q", "3"),
    ]


def test_settings():
    made = generation_settings(SamplingParams(temperature=0.5, logit_bias=((3, float("-inf")),)), max_tokens=None, n=1)
    assert (made["temperature"], made["n_predict"], made["max_tokens"], made["n"]) == (0.5, -1, -1, 1)
    assert made["logit_bias"] == [{"token": 3, "bias": -9999.0}]  # JSON has no minus infinity


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ("a", [("a",)]),
        ([1, 2], [(1, 2)]),
        ([1, "a", 2], [(1, "a", 2)]),
        (["a", "b"], [("a",), ("b",)]),
        ([[1, "a"], "b", {"prompt_string": "c"}], [(1, "a"), ("b",), ("c",)]),
        ({"prompt_string": "c"}, [("c",)]),
    ],
)
def test_prompts(prompt, parts):
    assert parsed(NativeCompletionRequest, {"prompt": prompt}).parts(INFO) == parts


def test_names():
    def limit(**fields):
        return parsed(NativeCompletionRequest, {"prompt": "x", **fields}).limit()

    assert limit() is limit(n_predict=-1) is limit(max_tokens=-1) is None
    assert limit(n_predict=0) == 0
    assert limit(n_predict=3, max_tokens=4) == 3
    assert limit(max_tokens=4) == 4
    made = parsed(NativeCompletionRequest, {"prompt": "x", "json_schema": {"type": "integer"}, "n_cmpl": 2, "stop": []})
    assert made.constraint() is not None
    assert made.n == 2
    assert parsed(NativeCompletionRequest, {"prompt": "x", "grammar": "", "id_slot": 1, "n_keep": -1}).grammar is None


@pytest.mark.parametrize(
    ("cls", "body", "param"),
    [
        (NativeCompletionRequest, {"prompt": "x", "post_sampling_probs": True}, "post_sampling_probs"),
        (NativeCompletionRequest, {"prompt": "x", "n_indent": 2}, "n_indent"),
        (NativeCompletionRequest, {"prompt": "x", "n_predict": -2}, "n_predict"),
        (NativeCompletionRequest, {}, "prompt"),
        (InfillRequest, {"input_prefix": "x"}, "input_suffix"),
        (InfillRequest, {"input_prefix": "", "input_suffix": "", "input_extra": [{"filename": 1}]}, None),
    ],
)
def test_refused(cls, body, param):
    said = error(cls, body)
    assert param is None or said["param"] == param


def test_tokens_that_were_dropped_are_counted():
    builder = NativeBuilder(model="tiny", prompts=["p"], n=1, with_logprobs=False, settings={})
    builder.add(0, PrefillDone(id="x", prompt_tokens=1))
    last = Delta(id="x", text="a", completion_tokens=9, finish="length", stopped_by="max_tokens", dropped_tokens=5)
    builder.add(0, last)
    assert builder.body()["truncated"]
    assert builder.usage()["completion_tokens_details"] == {"dropped_tokens": 5}
