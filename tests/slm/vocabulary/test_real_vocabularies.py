"""Real vocabularies: training, transformers, the exported file in llama.cpp and the server have the same ids.

The vocabularies come from llama.cpp's own tests, in ``vocab/`` of the shared data. The suite compares some texts and
conversations of one; ``SLM_TEST_VOCABULARIES=FILE:FOLDER`` compares 500 texts, 200 conversations and 200 with tools of
the files named (with the chat template in the file where ``TEMPLATES`` has none). A folder holds ``tokenizer.json`` and
``tokenizer_config.json``, as published; Gemma 3's and LFM2's are not in the shared data.
"""

import itertools
import json
import os
import random
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from slm.data.chat.formats import to_document
from slm.data.chat.template import TOOL_WORDS, TemplateRefusesError
from slm.data.chat.tokens import ChatEncoder, with_chatml
from slm.data.chat.tool_template import with_tools
from slm.data.stream.chat_setup import with_template
from slm.data.stream.packing import Tokenized
from slm.data.tokenizers.make import load_tokenizer
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.llama.model import Model
from slm.serve.chat_template import ChatPrompt
from slm.serve.engine.protocol import ModelInfo
from slm.serve.engine.tokenize import tokenize_within
from slm.vocabulary.exportable import failures, write_vocabulary
from slm.vocabulary.gguf_vocab import build_vocab
from slm.vocabulary.same_ids import PROBES
from tests.helpers import tool_templates as templates
from tests.helpers.gguf_tokenizer import convert
from tests.helpers.tokenizers import PIECES

LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}{% set system = messages[0]['content'] %}"
    "{% else %}{% set turns = messages %}{% set system = false %}{% endif %}{% for message in turns %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
    "{% endif %}{% if loop.index0 == 0 and system != false %}"
    "{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content | trim + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
TEMPLATES = {"llama-spm": LLAMA2, "llama-bpe": templates.LLAMA3, "qwen2": templates.QWEN}
IN_THE_SUITE = ("llama-spm",)  # the others take half a minute each
NAMED = [Path(each) for each in os.environ.get("SLM_TEST_VOCABULARIES", "").split(":") if each]
N_TEXTS, N_CONVERSATIONS = (500, 400) if NAMED else (60, 30)
PHI3_MARKS = ("<|user|>", "<|assistant|>", "<|end|>", "<|system|>", "</s>")


@dataclass(frozen=True, kw_only=True)
class Made:
    """A vocabulary as a tokenizer, as a model directory, and in a GGUF file."""

    tokenizer: Tokenizer
    directory: Path
    gguf: Path
    failures: list[str]
    rows: int


def real(path: Path, template: str | None = None) -> Tokenizer:
    return load_tokenizer(path) if path.is_dir() else convert(path, template=template)


def make(path: Path, folder: Path, *, template: str | None = None, chatml: bool = False, tools: bool = False) -> Made:
    """``tools``: with the template that a run carries whose conversations have tools that its own does not write."""
    tokenizer = real(path, template)
    tokenizer = with_chatml(tokenizer) if chatml else tokenizer
    if tools:
        tokenizer = with_template(tokenizer, with_tools(ChatEncoder(tokenizer).template, list(TOOL_WORDS)))
    rows = -(-tokenizer.vocab_size // 64) * 64
    tokenizer.save(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": rows}))
    if tools:  # the vocabulary is the same
        found = []
        write_vocabulary(folder / "model.gguf", build_vocab(folder, rows), name="real")
    else:
        found = failures(folder, rows, "real", folder / "model.gguf")
    return Made(tokenizer=tokenizer, directory=folder, gguf=folder / "model.gguf", failures=found, rows=rows)


@pytest.fixture(scope="module", params=NAMED or IN_THE_SUITE, ids=lambda each: Path(each).stem)
def made(request, shared_data, tmp_path_factory) -> Made:
    path = request.param if NAMED else shared_data / "vocab" / f"ggml-vocab-{request.param}.gguf"
    if not path.exists():
        pytest.skip(f"no vocabulary at {path}")
    name = path.stem.removeprefix("ggml-vocab-")
    return make(path, tmp_path_factory.mktemp(name), template=TEMPLATES.get(name))


def texts(count: int, shared_data: Path, *, unlike: tuple[str, ...]) -> list[str]:
    """Lines of WikiText and odd characters, none of which spells one of the tokens ``unlike``: as transformers reads
    texts, these are tokens."""
    rng = random.Random(5)
    lines = (shared_data / "wikitext" / "wiki.test.raw").read_text(encoding="utf-8").splitlines()
    odd = ("".join(rng.choices(PIECES, k=rng.randint(1, 12))) for _ in itertools.count())
    real = (line for line in itertools.cycle(lines) if line.strip())
    every = itertools.chain(PROBES, (next(source) for source in itertools.cycle((odd, real))))
    return list(itertools.islice((each for each in every if not any(name in each for name in unlike)), count))


def conversations(contents: list[str], count: int) -> list[tuple[list[dict], list[dict]]]:
    """Every second one has a tool, which every fourth calls. Answers have no white space at their ends: training cuts
    the text there, as generation does, and transformers does not."""
    answers = itertools.cycle([each.strip() for each in contents if each.strip()])
    words, found = itertools.cycle(contents), []
    function = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
    tool = {"type": "function", "function": function}
    for number in range(count):
        messages = [{"role": "system", "content": next(words)}] if number % 3 == 0 else []
        for _ in range(1 + number % 2):
            messages += [{"role": "user", "content": next(words)}, {"role": "assistant", "content": next(answers)}]
        if number % 4 == 3:
            call = {
                "id": "call00001",
                "type": "function",
                "function": {"name": "look", "arguments": {"text": next(words)}},
            }
            messages[-1:] = [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": next(words), "name": "look", "tool_call_id": "call00001"},
                {"role": "assistant", "content": next(answers)},
            ]
        found.append((messages, [tool] if number % 2 else []))
    return found


def server_ids(llama: Model, prompt: ChatPrompt, messages: list[dict], tools: list[dict]) -> list[int]:
    """What the engine makes of a chat request."""
    sent = prompt.render(messages, tools)
    options = {
        "add_special": sent.add_special,
        "parse_special": sent.parse_special,
        "literal_spans": sent.literal_spans,
    }
    return tokenize_within(llama, sent.text, 1 << 20, **options)[0]


def info(llama: Model) -> ModelInfo:
    names = dict.fromkeys(ModelInfo.__dataclass_fields__)
    known = {"chat_template": llama.chat_template(), "control_tokens": llama.control_names(), "add_bos": llama.add_bos}
    return ModelInfo(**(names | known | {"bos": llama.token_name(llama.bos), "eos": llama.token_name(llama.eos)}))


def hf_ids(found) -> list[int]:
    return list(found if isinstance(found, list) else found["input_ids"])


class Documents:
    """A document stream of these texts."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = iter(texts)

    def __next__(self) -> str:
        return next(self._texts)


def test_texts_and_chats_have_the_same_ids_everywhere(made, shared_data):
    from transformers import AutoTokenizer

    assert made.failures == []
    tokenizer, theirs = made.tokenizer, AutoTokenizer.from_pretrained(made.directory)
    spelled = tuple(token["content"] for token in tokenizer.spec["added_tokens"])
    plain = texts(N_TEXTS, shared_data, unlike=spelled)
    training = Tokenized(Documents(plain), tokenizer.encode, eot_id=tokenizer.eot_id, begins=tokenizer.begins)
    encoder, compared, trained = ChatEncoder(tokenizer), [0, 0], 0
    with Model(made.gguf, vocab_only=True) as llama:
        for text in plain:
            ids = next(training).tolist()
            if "NFC" not in json.dumps(tokenizer.spec["normalizer"]) or text.isascii():
                assert llama.tokenize(text, add_special=True, parse_special=False) == ids[:-1], text
            assert hf_ids(theirs(text)) == ids[:-1], text
        prompt = ChatPrompt(info(llama))
        for messages, tools in conversations([each for each in plain if each.isascii()], N_CONVERSATIONS):
            try:
                ours = encoder.prompt(messages[:-1], tools)
            except TemplateRefusesError:
                continue  # Llama 2's knows no tools
            options = {"tools": tools or None, "add_generation_prompt": True}
            assert hf_ids(theirs.apply_chat_template(messages[:-1], **options)) == ours
            if tokenizer.begins:
                assert tuple(ours[: len(tokenizer.begins)]) == tokenizer.begins
            with suppress(TemplateRefusesError):  # Gemma 4's begins an answer otherwise than it writes one
                ids, scored, _ = encoder.conversation(to_document({"messages": messages, "tools": tools}))
                assert hf_ids(theirs.apply_chat_template(messages, tools=tools or None)) == ids.tolist()
                assert scored.any()
                trained += 1
            if not (tools and prompt.call_form.own):  # such a template says nothing of tools, so the server does
                assert server_ids(llama, prompt, messages[:-1], tools) == ours
                compared[bool(tools)] += 1
    assert sum(compared) > N_CONVERSATIONS / 4
    print(f"{made.directory.name}: {len(plain)} texts, {compared[0]} chats, {compared[1]} with tools, {trained} whole")


def test_a_template_made_for_tools_has_the_same_ids_everywhere(shared_data, tmp_path):
    """Llama 2's template knows no tools: a run whose conversations have some carries one of ours around it."""
    from transformers import AutoTokenizer

    paths = NAMED or [shared_data / "vocab" / f"ggml-vocab-{name}.gguf" for name in IN_THE_SUITE]
    for path in paths:
        name = path.stem.removeprefix("ggml-vocab-")
        if TOOL_WORDS.keys() <= ChatEncoder(real(path, TEMPLATES.get(name))).template.writes:
            continue
        made = make(path, tmp_path / name, template=TEMPLATES.get(name), tools=True)
        theirs, encoder = AutoTokenizer.from_pretrained(made.directory), ChatEncoder(made.tokenizer)
        spelled = tuple(token["content"] for token in made.tokenizer.spec["added_tokens"])
        plain = texts(N_TEXTS, shared_data, unlike=spelled)
        compared = [0, 0]  # with tools, and of these with calls
        with Model(made.gguf, vocab_only=True) as llama:
            prompt = ChatPrompt(info(llama))
            for messages, tools in conversations([each for each in plain if each.isascii()], N_CONVERSATIONS):
                if not tools:
                    continue
                ours = encoder.prompt(messages[:-1], tools)
                options = {"tools": tools, "add_generation_prompt": True}
                assert hf_ids(theirs.apply_chat_template(messages[:-1], **options)) == ours
                assert server_ids(llama, prompt, messages[:-1], tools) == ours
                assert tuple(ours[: len(made.tokenizer.begins)]) == made.tokenizer.begins
                ids, scored, _ = encoder.conversation(to_document({"messages": messages, "tools": tools}))
                assert hf_ids(theirs.apply_chat_template(messages, tools=tools)) == ids.tolist()
                assert scored.any()
                compared[0] += 1
                compared[1] += any("tool_calls" in each for each in messages)
        assert compared[0] >= N_CONVERSATIONS // 2
        assert compared[1] >= N_CONVERSATIONS // 5
        print(f"{name}: {compared[0]} chats with tools, {compared[1]} with calls, by the template made for tools")


def test_a_base_gets_a_template_that_begins_as_its_texts_do(shared_data, tmp_path):
    """Tuning gives a base without a template ChatML: with the token that begins Llama's texts, once."""
    from transformers import AutoTokenizer

    made = make(shared_data / "vocab" / "ggml-vocab-llama-spm.gguf", tmp_path, chatml=True)
    assert made.failures == []
    assert made.tokenizer.begins == (1,)
    messages = [{"role": "user", "content": "What?"}]
    ours = ChatEncoder(made.tokenizer).prompt(messages)
    assert (ours[0], ours.count(1)) == (1, 1)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert hf_ids(theirs.apply_chat_template(messages, add_generation_prompt=True)) == ours
    with Model(made.gguf, vocab_only=True) as llama:
        assert llama.add_bos
        assert server_ids(llama, ChatPrompt(info(llama)), messages, []) == ours


def test_what_llama_cpp_does_not_swallow_is_refused(shared_data, tmp_path):
    """Phi-3's marks swallow the white space behind them; llama.cpp knows that by the model's name alone."""
    convert(shared_data / "vocab" / "ggml-vocab-phi-3.gguf", rstrip=PHI3_MARKS).save(tmp_path)
    (failure,) = failures(tmp_path, 32064, "mine", tmp_path / "mine.gguf")
    assert "in a chat, its tokenizer gives other ids" in failure
    assert failures(tmp_path, 32064, "Phi-3-mini", tmp_path / "phi-3.gguf") == []
