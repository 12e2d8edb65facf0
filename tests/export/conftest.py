import json
from pathlib import Path

import pytest

from tests.helpers import programs
from tests.helpers import tiny_checkpoint as tiny


@pytest.fixture(scope="session")
def exported(tmp_path_factory) -> tuple[Path, dict]:
    """A run exported to f32 and q4_k_m, through the command, and the record that the command printed."""
    folder = tmp_path_factory.mktemp("exported")
    root = tiny.run(folder / "my-run")
    options = [f"run={root}", "threads=1", "quant=q4_k_m,f32", "license=apache-2.0"]
    return root, json.loads(programs.run("slm.export", options, folder).splitlines()[-1])
