"""Runs the commands of a page in examples/ as they stand, in small: ``make`` without the set-up, runs in a folder of
the test, and a model that learns for seconds.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.helpers import REPOSITORY, programs

SMALL = {
    "train": "tokenizer.vocab_size=300 tokenizer.sample_bytes=200000 model.n_layers=1 model.d_model=256 model.n_heads=4"
    " model.n_kv_heads=2 model.ffn_dim=256 train.seq_len=64 train.micro_batch=4 train.eval_blocks=4 train.max_steps=12"
    " train.kernels=eager train.precision=f32 train.threads=1 train.workers=0 train.sample_prompts=[]"
    " optim.warmup_steps=2 data.val_fraction=0.1",
    "chat": "threads=1 max_tokens=8",
    "serve": "serve.threads=1 port=0",
    "export": "calibration.chunks=2 proof.chunks=2",
    "data-stats": "stats.plot=runs/data-stats.png",
}
"""Options that make a stage small, added behind those of the page."""


def commands(page: str) -> list[str]:
    """The lines of the shell blocks of examples/``page``."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (REPOSITORY / "examples" / page).read_text(), re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def in_small(line: str, runs: Path) -> str:
    """A page's command with ``runs/`` in the folder ``runs``, this Python, and the options of ``SMALL``."""
    line = line.replace(".venv/bin/python", sys.executable)
    if line.startswith(".venv/bin/slm "):
        line = f"{line.replace('.venv/bin/slm', f'{sys.executable} -m slm')} {SMALL.get(line.split()[1], '')}"
    if not line.startswith("make "):
        return re.sub(r"(?<![\w/])runs/", f"{runs}/", line)
    target = line.split()[1]
    more = SMALL.get(target, "") + (f" runs_dir={runs}" if target == "train" else "")
    if 'ARGS="' in line:
        line = re.sub(r'ARGS="(.*)"', lambda found: f'ARGS="{found[1]} {more}"', line)
    else:
        line = f'{line} ARGS="{more}"'
    line = re.sub(r"(?<![\w/])runs/", f"{runs}/", line)
    # -o: the environment is there, whatever the dates of its files.
    return line.replace("make ", f"make --no-print-directory -o ready PY={sys.executable} ", 1)


def run(line: str, runs: Path) -> str:
    """What a page's command prints, run in small from the top folder. It must succeed.

    Of ``make``, the command that it makes of the line is forked with everything imported.
    """
    command = in_small(line, runs)
    if not command.startswith("make ") or line.startswith("make -n "):
        return _shell(command)
    _, _, module, *words = shlex.split(_shell(command.replace("make ", "make -n ", 1)))
    return programs.run(module, words, runs, timeout=240)


def _shell(command: str) -> str:
    done = subprocess.run(["bash", "-c", command], cwd=REPOSITORY, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
