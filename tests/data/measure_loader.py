"""How many tokens a second the loader gives, and whether its memory stays flat: figures for docs/results/data.md.

    python tests/data/measure_loader.py [--tokens 10000000] [--text FILE.parquet] [--workers 1]

Embedded stories under a BPE of 2,048 ids trained on them; with --text also that text under GPT-2's vocabulary
(TIKTOKEN_CACHE_DIR names a folder that holds it). The last line is JSON.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from slm.data.config import DataConfig, TokenizerConfig
from slm.data.stream.loader import Loader
from slm.data.tales.story import story
from slm.data.tokenizers.make import make_tokenizer

SEQ_LEN, MICRO_BATCH = 1024, 8


def memory() -> int:
    """Resident bytes of this process and the workers."""
    own = psutil.Process()
    return sum(process.memory_info().rss for process in [own, *own.children(recursive=True)])


def measure(config: DataConfig, tokenizer, *, workers: int, tokens: int) -> dict[str, float]:
    """Tokens a second over ``tokens`` tokens, the start not counted, and memory in the first tenth and in all."""
    per_batch = SEQ_LEN * MICRO_BATCH
    with Loader(config, tokenizer, seq_len=SEQ_LEN, micro_batch=MICRO_BATCH, seed=1, workers=workers) as batches:
        begun = time.perf_counter()
        next(batches)
        start = time.perf_counter()
        early, peak = 0, 0
        for number in range(tokens // per_batch):
            next(batches)
            if number % 16 == 0:
                used = memory()
                if number * per_batch <= tokens // 10:
                    early = max(early, used)
                peak = max(peak, used)
        seconds = time.perf_counter() - start
    return {
        "tokens_per_s": round(tokens / seconds),
        "first_batch_s": round(start - begun, 2),
        "mb_after_a_tenth": round(early / 2**20, 1),
        "mb_at_most": round(peak / 2**20, 1),
    }


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--tokens", type=int, default=10_000_000)
    options.add_argument("--workers", default="1")
    options.add_argument("--text")
    options.add_argument("--cache", default="")
    given = options.parse_args()
    stories = DataConfig(kind="tales", val_fraction=0.1, shuffle_buffer=0)
    bpe = TokenizerConfig(kind="bpe", vocab_size=2048)
    cases = {"stories, BPE of 2,048": (stories, make_tokenizer(bpe, lambda: (story(0, i) for i in range(4000))))}
    if given.text:
        text = {"kind": "files", "files": [given.text]}
        gpt2 = make_tokenizer(TokenizerConfig(kind="tiktoken"), lambda: iter(()))
        cases["books, GPT-2"] = (DataConfig(**text), gpt2)
        if given.cache:
            cached = DataConfig(**text, cache=True, cache_dir=given.cache)
            cases["books, GPT-2, cache filling"] = cases["books, GPT-2, cache full"] = (cached, gpt2)
    found = {}
    for name, (config, tokenizer) in cases.items():
        for workers in map(int, given.workers.split(",")):
            found[f"{name}, workers={workers}"] = measure(config, tokenizer, workers=workers, tokens=given.tokens)
            print(f"{name}, workers={workers}: {found[f'{name}, workers={workers}']}", file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
