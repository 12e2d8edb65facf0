"""A server of files that no longer match their run: the person is told, and the server serves."""

import pytest

from tests.helpers.servers import running_server
from tests.helpers.tiny_gguf import exported_run


@pytest.mark.parametrize("by_path", [False, True])
def test_a_file_older_than_its_runs_newest_checkpoint_is_named(tmp_path, by_path):
    run = exported_run(tmp_path / "w1", exported_at=3, trained_to=60)
    (path,) = (run / "gguf").glob("*.gguf")
    with running_server(tmp_path / "log", path if by_path else run) as server:
        lines = [line for line in server.log.read_text().splitlines() if "step 3" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"note: {path.name} is from step 3, but ")
    assert lines[0].endswith(f"renew with: make export RUN={run} QUANT=q4_k_m")
