"""Calls that would abort the process inside native code."""

import subprocess
import sys

import pytest

from slm.llama.errors import LlamaError, MisuseError

SETUP = """
import sys
from slm.llama.context import Batch, Context
from slm.llama.errors import MisuseError
from slm.llama.model import Model
from slm.llama.sampler import Sampler

assert False, "asserts run: this is not python -O"
model = Model(sys.argv[1])
context = Context(model, n_ctx=64, n_seq_max=2, n_threads=1)
batch = Batch(4)
batch.extend([1, 2], 0, 0, True)
context.decode(batch)
closed = Sampler(model).greedy()
closed.close()
shut = Context(model, n_ctx=64, n_threads=1)
shut.decode(batch)
shut.close()
gone = Model(sys.argv[1])
gone.close()
"""

BAD_CALLS = {
    "batch overflow": "batch.extend([1, 2, 3], 2, 0, True)",
    "no tokens": "batch.extend([], 2, 0, True)",
    "batch sequence": "batch.add(1, 2, 1, True)",
    "negative position": "batch.add(1, -1, 0, True)",
    "every sequence": "context.seq_rm(-1)",
    "unknown sequence": "context.seq_cp(0, 2)",
    "logits not asked for": "context.row(0)",
    "entry beyond the batch": "context.row_address(2)",
    "all rows": "context.logits_all(2)",
    "batch of more sequences": "context.decode(Batch(4, 3))",
    "closed context": "shut.decode(batch)",
    "logits of a closed context": "shut.logits(1)",
    "closed model": "gone.tokenize('a', add_special=False, parse_special=False)",
    "context of a closed model": "Context(gone, n_ctx=64)",
    "too many sequences": "Context(model, n_ctx=64, n_seq_max=100_000)",
    "closed sampler": "closed.sample(context, 1)",
    "token of a closed sampler": "closed.accept(1)",
    "chain without an end": "Sampler(model).top_k(4).sample(context, 1)",
    "sampler after the end": "Sampler(model).greedy().top_k(4)",
    "seed": "Sampler(model).dist(2**32 - 1)",
}


def test_bad_calls_are_refused_under_python_o(tiny_path):
    """``python -O`` drops asserts. Each of these calls would crash the process or read foreign memory."""
    code = SETUP
    for name, call in BAD_CALLS.items():
        code += f"try:\n    {call}\nexcept MisuseError:\n    print({name!r})\n"
    done = subprocess.run([sys.executable, "-O", "-c", code, str(tiny_path)], capture_output=True, text=True)
    assert done.stdout.splitlines() == list(BAD_CALLS), done.stderr


def test_a_misuse_is_a_defect_and_not_an_error_to_recover_from():
    assert issubclass(MisuseError, AssertionError)
    assert not issubclass(MisuseError, LlamaError)


@pytest.mark.parametrize("token", [-1, -(2**31)])
def test_negative_ids_are_refused_when_the_batch_is_filled(token):
    from slm.llama.context import Batch

    batch = Batch(4)
    with pytest.raises(LlamaError, match="negative"):
        batch.add(token, 0, 0, True)
    with pytest.raises(LlamaError, match="negative"):
        batch.extend([3, token], 0, 0, True)
    assert len(batch) == 0
