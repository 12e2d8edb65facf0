"""How fast each reader is: ``python tests/data/readers/measure_readers.py FOLDER``.

Every file of the folder is read once, after a first time that does not count. Speeds are per second of processor time.
"""

import argparse
import resource
import sys
import time
from collections import defaultdict
from pathlib import Path

from slm.data.bad_records import TALLY
from slm.data.readers.reader import Reading
from slm.data.sources import kinds
from slm.data.sources.files import TextFile

NEEDED = 20.0
"""kB of text a second: what a model of 10 million parameters learns from on two cores (5,000 tokens)."""


def measure(path: str) -> tuple[int, int, float]:
    """Documents, characters and seconds of processor time."""
    begin = time.process_time()
    file = TextFile(path, Reading(on_bad="auto"))
    documents = chars = 0
    for raw, end in file.read():
        text = file.text(raw, end)
        documents += bool(text.strip())
        chars += len(text)
    return documents, chars, time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    paths = sorted(str(each) for each in Path(arguments.folder).rglob("*") if each.is_file())
    by_kind = defaultdict(list)
    for path in paths:
        if (kind := kinds.file_format(path)) in kinds.READERS:
            by_kind[kind].append(path)
    print("| kind | files | MB | documents | MB of text | MB/s read | kB/s of text | next to the need |")
    print("|---|---|---|---|---|---|---|---|")
    for kind, names in sorted(by_kind.items()):
        measure(names[0])
        found = [[measure(name) for name in names] for _ in range(arguments.repeats)]
        seconds = max(1e-6, min(sum(each[2] for each in once) for once in found))
        size = sum(Path(name).stat().st_size for name in names)
        documents, chars = (sum(each[i] for each in found[0]) for i in range(2))
        speed = chars / 1000 / seconds
        print(
            f"| {kinds.title(kind)} | {len(names)} | {size / 1e6:.2f} | {documents:,} | {chars / 1e6:.2f} "
            f"| {size / 1e6 / seconds:.1f} | {speed:,.0f} | {speed / NEEDED:,.0f} x |",
            flush=True,
        )
    TALLY.report()
    scale = 1 << 20 if sys.platform == "darwin" else 1 << 10
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale:.0f} MB")


if __name__ == "__main__":
    main()
