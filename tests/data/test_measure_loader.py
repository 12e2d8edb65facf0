"""Memory stays flat however much is read, and the loader keeps ahead of training: a short run of the measurement."""

import json
import subprocess
import sys


def test_memory_is_flat_and_tokens_are_enough(repository):
    """At the full length (10 million tokens) docs/results/data.md has the figures."""
    command = [sys.executable, "tests/data/measure_loader.py", "--tokens", "1500000", "--workers", "2"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout.splitlines()[-1]).values()
    assert found["mb_at_most"] < found["mb_after_a_tenth"] + 24
    # The fastest preset takes some 20,000 tokens a second; a machine many times as slow trains as many times slower.
    assert found["tokens_per_s"] > 20_000
