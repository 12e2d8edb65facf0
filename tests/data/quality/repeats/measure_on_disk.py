"""Time and memory of finding near duplicates on disk: ``python tests/data/quality/repeats/measure_on_disk.py``.

The sketches are random numbers, and not made of text: 0.3 of the documents repeat one of the thousand before, with a
few numbers changed.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from slm.data.quality.repeats.on_disk import MEMORY, NEAR, DiskFinder
from slm.data.quality.repeats.sketch import N_HASHES

BATCH = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--memory", type=int, default=MEMORY >> 20, help="MB")
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="measure"))
    rng = np.random.default_rng(0)
    finder = DiskFinder(folder, "near", arguments.threshold, memory=arguments.memory << 20)
    before = np.zeros((0, N_HASHES), dtype=np.uint32)
    made, times = 0, {"make": 0.0, "add": 0.0, "compare": 0.0}
    for start in range(0, arguments.documents, BATCH):
        at = time.process_time()
        found = rng.integers(0, 1 << 32, (BATCH, N_HASHES), dtype=np.uint32)
        repeats = np.flatnonzero(rng.random(BATCH) < (0.3 if len(before) else 0.0))
        made += len(repeats)
        if len(repeats):
            changed = found[repeats]
            found[repeats] = before[rng.integers(0, len(before), len(repeats))]
            found[repeats, :8] = changed[:, :8]  # one band of sixteen
        before = np.delete(found, repeats, axis=0)
        digests = np.arange(start, start + BATCH, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        done = time.process_time()
        finder.add_sketches(digests, found)
        times["make"] += done - at
        times["add"] += time.process_time() - done
    at = time.process_time()
    near = int((finder.verdicts() == NEAR).sum())
    times["compare"] = time.process_time() - at
    disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    finder.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    record = {"documents": arguments.documents, "made": made, "near": near, "MB": round(peak, 1)}
    print(json.dumps(record | {f"{name}_s": round(each, 2) for name, each in times.items()} | {"disk_MB": disk >> 20}))


if __name__ == "__main__":
    main()
