"""EleutherAI's lm-evaluation-harness against the server: log-likelihoods equal to those of the file itself.

Where ``lm_eval`` is installed (``pip install "lm-eval[api]"``) it runs; the requests that it makes are replayed anyway.
"""

import importlib.util
import json

import httpx
import numpy as np
import pytest

from slm.llama.context import Batch, Context
from slm.llama.model import Model

DOCS = [
    {"question": "the old fox went to the", "choices": [" river", " red boat", " garden"], "label": 0},
    {"question": "once upon a time there was a", "choices": [" girl", " bear in the garden", " x"], "label": 0},
    {"question": "she said hello to the", "choices": [" wind", " bear", " little bird"], "label": 1},
]
PAIRS = [(doc["question"], choice) for doc in DOCS for choice in doc["choices"]]


@pytest.fixture(scope="module")
def direct(tiny_path):
    """(log-likelihood, whether greedy decoding says the same) of a continuation, from llama.cpp's own logits."""
    with Model(tiny_path) as model, Context(model, n_ctx=256, n_batch=256, n_ubatch=256, n_threads=1) as context:

        def score(before: list[int], after: list[int]) -> tuple[float, bool]:
            tokens = before + after
            context.clear()
            batch = Batch(len(tokens))
            batch.extend(tokens, 0, 0, True, every=True)
            context.decode(batch)
            logits_TV = context.logits_all(len(tokens), copy=True).astype(np.float64)
            logprobs_TV = logits_TV - np.logaddexp.reduce(logits_TV, axis=1, keepdims=True)
            rows = range(len(before) - 1, len(tokens) - 1)
            total = sum(logprobs_TV[row, tokens[row + 1]] for row in rows)
            return float(total), all(int(logits_TV[row].argmax()) == tokens[row + 1] for row in rows)

        def encode(text: str) -> list[int]:
            return model.tokenize(text, add_special=False, parse_special=True)

        score.encode = encode
        yield score


def split(score, context, continuation):
    """The harness's way: the whole text's tokens, cut where the context's own end."""
    whole, before = score.encode(context + continuation), score.encode(context)
    return whole[: len(before)], whole[len(before) :]


def test_the_requests_of_local_completions(server, direct):
    """Tokens from /tokenize, several prompts in a request, echo with log-probabilities, one token more."""
    info = httpx.get(server.url + "/tokenizer_info").json()
    assert isinstance(info["eos_token"], str)

    def encode(text):
        body = {"prompt": text, "add_special_tokens": False}
        return httpx.post(server.url + "/tokenize", json=body).json()["tokens"]

    inputs = []
    for context, continuation in PAIRS:
        whole, before = encode(context + continuation), encode(context)
        inputs.append((whole, len(before)))
    body = {
        "model": "tiny",
        "prompt": [whole for whole, _ in inputs],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    choices = httpx.post(server.url + "/v1/completions", json=body, timeout=60).json()["choices"]
    for choice, (_, n), pair in zip(choices, inputs, PAIRS, strict=True):
        values = choice["logprobs"]["token_logprobs"][n:-1]
        tops = choice["logprobs"]["top_logprobs"][n:-1]
        greedy = all(value == max(top.values()) for value, top in zip(values, tops, strict=True))
        wanted, wanted_greedy = direct(*split(direct, *pair))
        assert sum(values) == pytest.approx(wanted, abs=2e-2)
        assert greedy == wanted_greedy


def gguf_scores(url):
    """What the harness's ``gguf`` model asks and reads."""
    for context, continuation in PAIRS:
        body = {"prompt": context + continuation, "logprobs": 10, "temperature": 0.0, "max_tokens": 1, "echo": True}
        logprobs = httpx.post(url + "/v1/completions", json=body, timeout=60).json()["choices"][0]["logprobs"]
        first = 0
        while logprobs["text_offset"][first] < len(context):
            first += 1
        yield first, sum(logprobs["token_logprobs"][first:-1])


def test_the_requests_of_gguf(server, direct):
    for (context, continuation), (first, total) in zip(PAIRS, gguf_scores(server.url), strict=True):
        whole = direct.encode(context + continuation)
        assert total == pytest.approx(direct(whole[:first], whole[first:])[0], abs=2e-2)


def test_a_text_that_ends_counts_its_last_token(server):
    """The token more may be the end of the text: it must be among the log-probabilities, or one of the prompt's
    would be taken for it."""
    end = httpx.post(server.url + "/tokenize", json={"prompt": "<|endoftext|>"}).json()["tokens"][0]
    body = {"prompt": "the fox", "max_tokens": 4, "logprobs": 1, "echo": True, "temperature": 0}
    body["logit_bias"] = {str(end): 100}
    answer = httpx.post(server.url + "/v1/completions", json=body).json()
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == "the fox"
    assert choice["logprobs"]["tokens"][-1] == "<|endoftext|>"
    assert choice["logprobs"]["text_offset"][-1] == len("the fox")
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["total_tokens"]
    # A chat's log-probabilities are of the message alone.
    chat = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "logit_bias": {str(end): 100}}
    choice = httpx.post(server.url + "/v1/chat/completions", json=chat).json()["choices"][0]
    assert choice["message"]["content"] == ""
    assert choice["logprobs"]["content"] == []


TASK = """
task: foxes
dataset_path: json
dataset_kwargs:
  data_files:
    test: {path}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
  - metric: acc_norm
"""


@pytest.mark.parametrize("kind", ["local-completions", "gguf"])
def test_the_harness_itself(server, direct, tmp_path, monkeypatch, kind):
    if any(importlib.util.find_spec(name) is None for name in ("lm_eval", "tenacity")):
        pytest.skip('lm_eval is not installed: pip install "lm-eval[api]"')
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    import lm_eval
    from lm_eval.tasks import TaskManager

    (tmp_path / "foxes.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in DOCS))
    (tmp_path / "foxes.yaml").write_text(TASK.format(path=tmp_path / "foxes.jsonl"))
    arguments = {
        "local-completions": {"model": "tiny", "base_url": server.url + "/v1/completions", "batch_size": 4},
        "gguf": {"base_url": server.url},
    }
    out = lm_eval.simple_evaluate(
        model=kind,
        model_args=arguments[kind],
        tasks=["foxes"],
        # The harness's own thousands of tasks take half a minute to list.
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )
    picks, wanted_picks = [], []
    for sample in out["samples"]["foxes"]:
        doc = sample["doc"]
        scores = [each[0][0] for each in sample["resps"]]
        wanted = [direct(*split(direct, doc["question"], choice))[0] for choice in doc["choices"]]
        assert scores == pytest.approx(wanted, abs=2e-2)
        picks.append(int(np.argmax(scores)) == doc["label"])
        wanted_picks.append(int(np.argmax(wanted)) == doc["label"])
    assert picks == wanted_picks
    assert out["results"]["foxes"]["acc,none"] == pytest.approx(np.mean(wanted_picks))
