"""How fast each filter is: ``python tests/data/quality/measure_filters.py train.parquet --repeats 3``.

The documents are in memory; what is measured is what each filter, change or search takes by itself, in processor time.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from slm.data.config import SourceConfig
from slm.data.quality.repeats.on_disk import DiskFinder
from slm.data.readers.reader import Reading, addressed
from slm.data.sources.contents import unit_hash
from slm.data.sources.files import TextFile
from slm.data.sources.filters import make_change, make_filter

NEEDED = 10_000
"""Tokens a second: what a model of 10 million parameters learns from on two cores, at most."""
BYTES_PER_TOKEN = 4.4
"""Mean length of GPT-2's tokens in Wikipedia."""


def filtering(**options: object) -> Callable[[list[str]], object]:
    """What a source with these options does with each document."""
    source = SourceConfig(kind="files", **options)  # type: ignore[arg-type]
    reason, change = make_filter(source), make_change(source)

    def run(texts: list[str]) -> None:
        for text in texts:
            if (reason is None or reason(text) is None) and change is not None:
                change(text)

    return run


def repeats(mode: str) -> Callable[[list[str]], object]:
    """Finding duplicates on disk."""

    def run(texts: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            finder = DiskFinder(Path(folder) / "f", mode, 0.8)  # type: ignore[arg-type]
            for start in range(0, len(texts), 256):
                finder.add(texts[start : start + 256])
            finder.verdicts()
            finder.close()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    texts, size = [], 0
    file = TextFile(arguments.file, Reading())
    for raw, end in file.read():
        if text := file.text(raw, end):
            texts.append(addressed(text, f"https://en.wiki{len(texts) % 97}.example/wiki/{len(texts)}"))
            size += len(text.encode())
        if size > arguments.megabytes * 1e6:
            break
    with tempfile.TemporaryDirectory() as folder:
        words, urls, evaluation = (Path(folder) / name for name in ("words", "urls", "evaluation.txt"))
        words.write_text("".join(f"word{n}\nphrase number {n}\n" for n in range(200)))
        urls.write_text("".join(f"domain{n}.example\n" for n in range(100_000)))
        evaluation.write_text("\n".join(texts[:20]))
        measured = {
            "unit hash (which split a document is in)": lambda texts: list(map(unit_hash, texts)),
            "`min_letters`, `script`": filtering(min_letters=0.3, script="latin"),
            "`languages`": filtering(languages=["en"]),
            "`rules=repetition`": filtering(rules="repetition"),
            "`rules=gopher`": filtering(rules="gopher"),
            "`rules=c4`": filtering(rules="c4"),
            "`blocked_words` (400)": filtering(blocked_words=str(words)),
            "`blocked_urls` (100,000)": filtering(blocked_urls=str(urls)),
            "`decontaminate` (20 texts)": filtering(decontaminate=[str(evaluation)]),
            "`mask_personal`": filtering(mask_personal=True),
            "`dedup=exact`": repeats("exact"),
            "`dedup=near`": repeats("near"),
        }
        print(f"{len(texts):,} documents, {size / 1e6:.1f} MB\n")
        print("| filter | MB/s | documents/s | tokens/s | next to the need |")
        print("|---|---|---|---|---|")
        for name, run in measured.items():
            run(texts[:50])
            seconds = []
            for _ in range(arguments.repeats):
                begin = time.process_time()
                run(texts)
                seconds.append(time.process_time() - begin)
            best = max(1e-6, min(seconds))
            tokens = size / BYTES_PER_TOKEN / best
            speeds = f"{size / 1e6 / best:.1f} | {len(texts) / best:,.0f} | {tokens:,.0f}"
            print(f"| {name} | {speeds} | {tokens / NEEDED:,.0f} x |", flush=True)


if __name__ == "__main__":
    main()
