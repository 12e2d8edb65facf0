"""A downloaded Qwen2, Gemma 2 and 3 and LFM2, tuned on conversations, exported, and asked in llama.cpp: they answer as
they learned to, and stop."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as HFTokenizer

from slm.data.tokenizers.make import load_tokenizer
from slm.export.config import ExportConfig
from slm.export.pipeline import export
from tests.helpers import tool_templates as templates
from tests.helpers.chat_model import base_tokenizer, with_template
from tests.helpers.programs import Program
from tests.helpers.small_run import QUICK
from tests.helpers.tokenizers import save_gemma_like

ANSWERS = {"Who are you?": "I am a fox.", "Where do you live?": "By the sea.", "What do you eat?": "Honey cookies."}
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 128, "tie_word_embeddings": True, "pad_token_id": None,
}  # fmt: skip
OPTIONS = (
    *QUICK,
    "train.sample_prompts=[]",
    *("train.seq_len=64", "train.micro_batch=8", "train.max_steps=60", "train.eval_every=60", "train.eval_blocks=8"),
    *("optim.lr=1e-2", "optim.warmup_steps=5", "data.shuffle_buffer=0", "data.max_epochs=null", "name=mine"),
)


def qwen2(folder: Path) -> None:
    """A Qwen2 as transformers saves one: biases, Qwen's split rule, ChatML."""
    import transformers

    marks = templates.CHATML_MARKS
    tokenizer = with_template(base_tokenizer(), templates.QWEN, marks, bos="<|endoftext|>", eos="<|im_end|>")
    size = -(-tokenizer.vocab_size // 64) * 64
    config = transformers.Qwen2Config(**SHAPE, vocab_size=size, bos_token_id=0, eos_token_id=tokenizer.eot_id)
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save(folder)
    words = HFTokenizer.from_file(str(folder / "tokenizer.json"))
    split = pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated")
    words.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    words.save(str(folder / "tokenizer.json"))


def lfm2(folder: Path) -> None:
    """An LFM2 as transformers saves one: short convolutions, ChatML."""
    import transformers

    marks = templates.CHATML_MARKS
    tokenizer = with_template(base_tokenizer(), templates.QWEN, marks, bos="<|endoftext|>", eos="<|im_end|>")
    size = -(-tokenizer.vocab_size // 64) * 64
    config = transformers.Lfm2Config(
        **SHAPE, vocab_size=size, bos_token_id=0, eos_token_id=tokenizer.eot_id, layer_types=["conv", "full_attention"]
    )
    transformers.Lfm2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save(folder)


def gemma2(folder: Path) -> None:
    """A Gemma 2 as transformers saves one: soft-caps, every second layer with a sliding window."""
    import transformers

    size = save_gemma_like(folder, "\n".join([*ANSWERS, *ANSWERS.values()] * 200), vocab_size=340)
    config = transformers.Gemma2Config(
        **SHAPE, head_dim=32, vocab_size=size, bos_token_id=2, eos_token_id=1, sliding_window=16,
        query_pre_attn_scalar=32,
    )  # fmt: skip
    transformers.Gemma2ForCausalLM(config).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(templates.GEMMA3)


def gemma3(folder: Path) -> None:
    """A Gemma 3 as transformers saves one: sliding windows, SentencePiece, turns that <end_of_turn> ends."""
    import transformers

    size = save_gemma_like(folder, "\n".join([*ANSWERS, *ANSWERS.values()] * 200), vocab_size=340)
    config = transformers.Gemma3TextConfig(
        **SHAPE, head_dim=32, vocab_size=size, bos_token_id=2, eos_token_id=1, sliding_window=16,
        query_pre_attn_scalar=32, layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    transformers.Gemma3ForCausalLM(config).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(templates.GEMMA3)


@pytest.mark.parametrize("make", [qwen2, gemma2, gemma3, lfm2])
def test_it_learns_to_answer_and_llama_cpp_gives_the_answers(make, tmp_path):
    from llama_cpp import Llama

    torch.manual_seed(0)
    make(tmp_path / "model")
    template = load_tokenizer(tmp_path / "model")
    rows = [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}
        for asked, said in ANSWERS.items()
    ]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows * 20)))
    other = {"messages": [{"role": "user", "content": "What are you?"}, {"role": "assistant", "content": "A fox."}]}
    (tmp_path / "held.jsonl").write_text("\n".join([json.dumps(other)] * 8))
    words = [f"base={tmp_path}/model", f"runs_dir={tmp_path}/runs", "data=chat", f"data.files=[{tmp_path}/chats.jsonl]"]
    words += [f"data.val_files=[{tmp_path}/held.jsonl]", *OPTIONS]
    program = Program("slm.train.tune.__main__", words, tmp_path)
    out, err = program.communicate(timeout=240)
    assert program.returncode == 0, out + err

    root = tmp_path / "runs" / "mine"
    record = export(ExportConfig(threads=1, run=root, quant=["q4_0", "f16"]))
    assert record["published"], record["files"]
    assert {"f16", "q4_0"} <= {each["type"] for each in record["files"]}
    (path,) = (root / "gguf").glob("*-F16.gguf")
    llama = Llama(str(path), n_ctx=128, n_threads=1, verbose=False)
    assert (
        llama.metadata["tokenizer.chat_template"]
        == template.files.get("chat_template.jinja", templates.QWEN.encode()).decode()
    )
    for asked, said in ANSWERS.items():
        reply = llama.create_chat_completion([{"role": "user", "content": asked}], temperature=0, max_tokens=40)
        (choice,) = reply["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (said, "stop")
    llama.close()
    assert "PARAMETER stop" in (root / "gguf" / "Modelfile").read_text()
