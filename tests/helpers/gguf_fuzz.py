"""Damages a GGUF file in many ways and lets an engine load each in its own process.

    python -m tests.helpers.gguf_fuzz FILE COUNT SEED

The last line is JSON: outcomes by kind, the slowest in seconds, and what was neither an error message nor a working
load. It must run in a process that has loaded nothing else, since every case is a fork of it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import re
import resource
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

LIMIT_S = 20.0
"""After which a case is killed and counts as one that hangs."""
EXTREMES = [0, 1, 2, 7, 31, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
KEYS = re.compile(rb"(?:general|tokenizer\.ggml|tokenizer|llama)\.[a-z_.]+(?=[\x00-\x0c]\x00\x00\x00)")
TENSORS = re.compile(rb"(?:blk\.\d+\.)?[a-z_]+\.weight(?=[\x01-\x04]\x00\x00\x00)")


def damaged(raw: bytes, header: int, rng: random.Random) -> tuple[bytes, str]:
    """The file after one to three changes of random kinds, and what they were."""
    data, changes = bytearray(raw), []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        kind = rng.choice(KINDS)
        # Earlier changes may have left nothing to change where this one would.
        with contextlib.suppress(struct.error, IndexError, ValueError):
            changes.append(f"{kind.__name__}{kind(data, header, rng) or ''}")
    return bytes(data), ", ".join(changes)


def flip(data, header, rng):
    at = rng.randrange(min(header, len(data)))
    data[at] ^= 1 << rng.randrange(8)
    return f"@{at}"


def byte(data, header, rng):
    at = rng.randrange(min(header, len(data)))
    data[at] = rng.randrange(256)
    return f"@{at}"


def number(data, header, rng):
    at, code = rng.randrange(max(min(header, len(data)) - 8, 1)), rng.choice("IQ")
    value = rng.choice(EXTREMES) % (1 << (32 if code == "I" else 64))
    data[at : at + struct.calcsize(code)] = struct.pack("<" + code, value)
    return f"@{at}={value}"


def counts(data, header, rng):
    at, value = rng.choice([4, 8, 16]), rng.choice([*EXTREMES, 3, 20, 25])
    data[at : at + 8] = struct.pack("<Q", value)
    return f"@{at}={value}"


def cut(data, header, rng):
    at = rng.randrange(rng.choice([64, header, len(data)]))
    del data[at:]
    return f"@{at}"


def remove(data, header, rng):
    at, n = rng.randrange(min(header, len(data))), rng.choice([1, 4, 8, 100, 5000])
    del data[at : at + n]
    return f"@{at}+{n}"


def insert(data, header, rng):
    at, n = rng.randrange(min(header, len(data))), rng.choice([1, 4, 8, 100])
    data[at:at] = rng.randbytes(n)
    return f"@{at}+{n}"


def value(data, header, rng):
    """Another value, or another type, of one metadata key."""
    found = list(KEYS.finditer(data, 0, header))
    if not found:
        return ""
    match = rng.choice(found)
    at = match.end()
    (kind,) = struct.unpack_from("<i", data, at)
    if rng.random() < 0.2:
        data[at : at + 4] = struct.pack("<i", new := rng.randrange(-1, 15))
        return f" {match.group().decode()} type {kind}->{new}"
    at += 4
    if kind == 9:  # an array: its element type, or its length
        if rng.random() < 0.5:
            data[at : at + 4] = struct.pack("<i", new := rng.randrange(-1, 15))
        else:
            (old,) = struct.unpack_from("<Q", data, at + 4)
            new = rng.choice([*EXTREMES, old - 1, old + 1]) % 2**64
            data[at + 4 : at + 12] = struct.pack("<Q", new)
    elif kind == 8:
        (n,) = struct.unpack_from("<Q", data, at)
        new = rng.choice(["length", "bytes", "other"])
        if new == "length":
            data[at : at + 8] = struct.pack("<Q", rng.choice([*EXTREMES, n - 1, n + 1]) % 2**64)
        elif new == "bytes" and n:
            data[at + 8 : at + 8 + n] = rng.randbytes(min(n, 4096))
        else:
            data[at : at + 8 + n] = struct.pack("<Q", 5) + b"other"
    elif kind in SCALARS:
        size = struct.calcsize(SCALARS[kind])
        if SCALARS[kind] in "fd":
            new = rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e30, 1e-30])
            data[at : at + size] = struct.pack("<" + SCALARS[kind], new)
        else:
            new = rng.choice(EXTREMES)
            data[at : at + size] = (new % (1 << 8 * size)).to_bytes(size, "little")
    return f" {match.group().decode()}={new}"


def tensor(data, header, rng):
    """Another shape, type or place of one tensor."""
    found = list(TENSORS.finditer(data, 0, header))
    if not found:
        return ""
    match = rng.choice(found)
    at = match.end()
    (n_dims,) = struct.unpack_from("<I", data, at)
    what = rng.choice(["dims", "size", "swap", "type", "offset", "name"])
    sizes = at + 4
    after = sizes + 8 * min(n_dims, 4)
    new = ""
    if what == "dims":
        data[at : at + 4] = struct.pack("<I", new := rng.choice([0, 1, 2, 3, 4, 5, 2**32 - 1]))
    elif what == "size":
        new = rng.choice([*EXTREMES, 255, 256, 257, 512])
        data[sizes : sizes + 8] = struct.pack("<Q", new)
    elif what == "swap" and n_dims == 2:
        data[sizes : sizes + 16] = data[sizes + 8 : sizes + 16] + data[sizes : sizes + 8]
    elif what == "type":
        data[after : after + 4] = struct.pack("<i", new := rng.randrange(-1, 45))
    elif what == "offset":
        data[after + 4 : after + 12] = struct.pack("<Q", new := rng.choice([*EXTREMES, 32, 64, 1024, 33]))
    else:
        data[match.start()] ^= 1
    return f" {match.group().decode()} {what}={new}"


def weights(data, header, rng):
    """Other numbers: not-a-number, infinity, noise."""
    at = rng.randrange(header, max(len(data) - 4096, header + 1))
    data[at : at + 4096] = rng.choice([b"\xff" * 4096, b"\x00\x00\x80\x7f" * 1024, rng.randbytes(4096)])
    return f"@{at}"


KINDS = [flip, byte, number, counts, cut, remove, insert, *[value] * 8, *[tensor] * 6, weights, weights]


def load(path: str) -> None:
    """What the engine process does with a file, to the first tokens and embedding. Ends the process."""
    from slm.data.errors import UserError
    from slm.llama.errors import LlamaError
    from slm.serve.engine.config import EngineConfig
    from slm.serve.engine.engine import Engine
    from slm.serve.engine.protocol import Embed, Generate, SamplingParams

    try:
        engine = Engine(EngineConfig(model_path=Path(path), context=64, slots=1, threads=1, batch=64, ubatch=64))
        engine.handle(Generate(id="a", prompt="the old fox", max_tokens=4, sampling=SamplingParams(temperature=0)))
        engine.handle(Embed(id="b", inputs=("the fox",)))
        while engine.busy:
            engine.step()
    except (UserError, LlamaError) as error:
        line = " ".join(str(error).split())
        os._exit(2 if line else 3)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(4)
    os._exit(0)


def outcome(pid: int) -> tuple[str, float]:
    """How the process ended, and after how many seconds."""
    began = time.perf_counter()
    while time.perf_counter() - began < LIMIT_S:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            took = time.perf_counter() - began
            if os.WIFSIGNALED(status):
                return f"killed by {signal.Signals(os.WTERMSIG(status)).name}", took
            return {0: "works", 2: "error"}.get(os.WEXITSTATUS(status), "no message"), took
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hangs", LIMIT_S


def main(path: str, count: int, seed: int) -> None:
    importlib.import_module("slm.serve.engine.engine")  # once, before the forks
    from slm.llama.gguf_check import read_header

    raw = Path(path).read_bytes()
    header = read_header(path).data_offset
    kinds, slowest, faults = Counter(), 0.0, []
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log", "w+") as log:
        target = Path(folder) / "damaged.gguf"
        for i in range(seed, seed + count):
            data, changes = damaged(raw, header, random.Random(i))
            target.write_bytes(data)
            log.seek(0)
            log.truncate()
            pid = os.fork()
            if pid == 0:
                os.dup2(log.fileno(), 2)
                resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                load(str(target))
            kind, took = outcome(pid)
            kinds[kind] += 1
            slowest = max(slowest, took)
            if kind not in ("works", "error") or took > 5:
                log.seek(0)
                messages = [line for line in log.read().splitlines() if "ASSERT" in line or "rror" in line]
                faults.append(f"case {i}: {kind} after {took:.1f} s: {changes}: {''.join(messages[-1:])[-200:]}")
    print(json.dumps({"cases": count, "outcomes": dict(kinds), "slowest_s": round(slowest, 2), "faults": faults}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
