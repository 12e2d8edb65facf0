"""What tuning takes: memory of the process and those it begins, and tokens/s, on random weights of real models' shapes.

    python -m tests.soak.tune_memory folder=/some/disk vocab=/path/to/vocab [shapes=0.6b] [ways=lora4]

Each way is ``slm tune`` on made-up conversations, in steps of 1,024 tokens, from a bf16 checkpoint as the Hub has them.
It begins with the loading of the model and ends with the last checkpoint, and all of it counts. Printed: the most that
was resident at once, the part of it that no file backs, and the rate of the steps.
"""

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from slm.from_gguf.proof import write_tokenizer
from slm.model.checkpoint import write_config
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel
from slm.report import final_json, table

LLAMA: dict[str, Any] = {"arch": "llama", "head_dim": 64, "seq_len": 2048, "vocab_size": 49_152}
SHAPES: dict[str, tuple[dict[str, Any], str]] = {
    "135m": (LLAMA | {"n_layers": 30, "d_model": 576, "n_heads": 9, "n_kv_heads": 3, "ffn_dim": 1536}, "gpt-2"),
    "360m": (LLAMA | {"n_layers": 32, "d_model": 960, "n_heads": 15, "n_kv_heads": 5, "ffn_dim": 2560}, "gpt-2"),
    "0.6b": (
        {"arch": "qwen3", "head_dim": 128, "seq_len": 2048, "vocab_size": 151_936, "n_layers": 28, "d_model": 1024}
        | {"n_heads": 16, "n_kv_heads": 8, "ffn_dim": 3072},
        "gpt-2",
    ),
    "1.1b": (
        LLAMA | {"n_layers": 22, "d_model": 2048, "n_heads": 32, "n_kv_heads": 4, "ffn_dim": 5632}
        | {"vocab_size": 32_000, "tie_embeddings": False},
        "llama-spm",
    ),
}  # fmt: skip
"""SmolLM2 135M and 360M, Qwen 3 0.6B and TinyLlama, with a vocabulary that fits into their rows."""
WAYS = {
    "lora32": ("tune.lora=16", "lora.base_bits=32"),
    "lora8": ("tune.lora=16", "lora.base_bits=8"),
    "lora4": ("tune.lora=16", "lora.base_bits=4"),
    "adamw": ("optim=adamw",),
    "adafactor": ("optim=adafactor",),
}
OPTIONS = (
    *("train.seq_len=1024", "train.pack_tokens=1024", "train.micro_batch=1", "train.grad_accum=1", "train.seed=1"),
    *("train.eval_every=1000000", "train.eval_blocks=1", "name=mine", "tune.replay=0"),
)
EVERY_S = 0.1


def make_model(folder: Path, shape: ModelConfig, vocabulary: Path) -> None:
    """Random weights in bf16, with the tokenizer of a GGUF file."""
    folder.mkdir(parents=True)
    write_config(folder, shape)
    write_tokenizer(vocabulary, folder)
    with torch.device("meta"):
        own = LanguageModel(shape).state_dict()
    kept = {name: each for name, each in own.items() if not (shape.tie_embeddings and name == "lm_head.weight")}
    torch.manual_seed(1)
    tensors = {
        name: torch.ones(each.shape, dtype=torch.bfloat16)
        if each.ndim < 2
        else torch.empty(each.shape, dtype=torch.bfloat16).normal_(std=0.02)
        for name, each in kept.items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def make_conversations(path: Path, count: int, words: int) -> None:
    """Questions and answers of made-up words: no two are equal."""
    chance = random.Random(1)
    known = ["".join(chance.choices("abdeiklmnorstu", k=5)) for _ in range(500)]
    with path.open("w", encoding="utf-8") as out:
        for _ in range(count):
            asked, said = (" ".join(chance.choices(known, k=words)) for _ in range(2))
            turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
            out.write(json.dumps({"messages": turns}) + "\n")


def resident(process: int) -> tuple[int, int]:
    """Bytes that the process and those it has begun have in memory, and those of them that no file backs."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
        children = [each.read_text(encoding="utf-8") for each in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:  # it has ended
        return 0, 0
    sizes = {line.split()[0]: int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("Rss")}
    all_of_it, without_files = sum(sizes.values()), sizes.get("RssAnon:", 0) + sizes.get("RssShmem:", 0)
    for child in " ".join(children).split():
        held, own = resident(int(child))
        all_of_it, without_files = all_of_it + held, without_files + own
    return all_of_it, without_files


def measure(folder: Path, way: str, steps: int, more: Sequence[str] = ()) -> dict[str, Any]:
    """One tuning from ``folder``'s model; ``more``: further options of it."""
    runs = folder / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    words = [f"base={folder}/model", f"data.files=[{folder.parent}/chats.jsonl]", "data=chat", f"runs_dir={runs}"]
    words += [f"data.val_files=[{folder.parent}/short.jsonl]", *OPTIONS, *WAYS[way], f"train.max_steps={steps}", *more]
    with (folder / f"{way}.log").open("w") as log:
        program = subprocess.Popen([sys.executable, "-m", "slm", "tune", *words], stdout=log, stderr=log)
        most, most_own, began = 0, 0, time.monotonic()
        while program.poll() is None:
            held, own = resident(program.pid)
            most, most_own = max(most, held), max(most_own, own)
            time.sleep(EVERY_S)
    found: dict[str, Any] = {"GB": most / 1e9, "GB without files": most_own / 1e9, "rc": program.wait()}
    found["seconds"] = time.monotonic() - began
    if (metrics := runs / "mine" / "metrics.jsonl").is_file():
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        rates = [row["tokens_per_s"] for row in rows if "tokens_per_s" in row]
        found |= {"tokens/s": rates[-1], "rates": rates} if rates else {}
    shutil.rmtree(runs, ignore_errors=True)
    return found


def main(argv: list[str]) -> int:
    """Print the table and the final JSON line."""
    own = ("folder", "vocab", "shapes", "ways", "steps")
    given = dict(word.split("=", 1) for word in argv if word.partition("=")[0] in own)
    more = [word for word in argv if word.partition("=")[0] not in own]
    home, vocab = Path(given["folder"]), Path(given["vocab"])
    home.mkdir(parents=True, exist_ok=True)
    make_conversations(home / "chats.jsonl", count=600, words=30)
    make_conversations(home / "short.jsonl", count=3, words=1)  # answers to questions are no part of this
    rows = []
    for name in given.get("shapes", ",".join(SHAPES)).split(","):
        options, vocabulary = SHAPES[name]
        shape, folder = ModelConfig(**options), home / name
        if not (folder / "model" / "model.safetensors").is_file():
            make_model(folder / "model", shape, vocab / f"ggml-vocab-{vocabulary}.gguf")
        for way in given.get("ways", ",".join(WAYS)).split(","):
            if way:
                row = {"shape": name, "parameters": shape.n_params, "way": way}
                rows.append(row | measure(folder, way, int(given.get("steps", 2)), more))
                print(json.dumps(rows[-1]), flush=True)
    columns = ("shape", "way", "GB", "GB without files", "tokens/s")
    cells = [[row[key] if isinstance(row[key], str) else f"{row[key]:.2f}" for key in columns] for row in rows]
    table("memory of tuning", columns, cells, key=2)
    final_json(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
