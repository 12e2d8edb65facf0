import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import REPOSITORY
from tests.helpers import tiny_checkpoint as tiny


@pytest.fixture(scope="session")
def exported(tmp_path_factory) -> tuple[Path, dict]:
    """A run exported to f32 and q4_k_m, through the command, and the record that the command printed."""
    root = tiny.run(tmp_path_factory.mktemp("exported") / "my-run")
    options = [f"run={root}", "threads=1", "quant=q4_k_m,f32", "license=apache-2.0"]
    done = subprocess.run(
        [sys.executable, "-m", "export", *options], capture_output=True, text=True, timeout=300, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stderr
    return root, json.loads(done.stdout.splitlines()[-1])
