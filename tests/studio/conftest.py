"""A studio over a new workspace, asked as a browser asks."""

import json

import pytest
from starlette.testclient import TestClient

from slm.studio.app import make_app
from slm.studio.config import StudioConfig

PORT = 8765
URL = f"http://127.0.0.1:{PORT}"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder with a run of which only the files are there that a card shows."""
    root = tmp_path_factory.mktemp("workspace")
    run = root / "runs" / "notes"
    (run / "checkpoints" / "step-00000008").mkdir(parents=True)
    (run / "checkpoints" / "step-00000008" / "config.json").write_text("{}")
    (run / "config.yaml").write_text("data: {kind: files, files: [texts]}\ntrain: {max_steps: 8}\n")
    records = [
        {"step": n, "loss": 4.0 - n / 4, "lr": 0.1, "tokens": 64 * n, "elapsed_s": float(n)} for n in range(1, 9)
    ]
    records.append({"step": 8, "tokens": 512, "val_loss": 2.1, "val_bits_per_byte": 1.25})
    (run / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    events = [{"event": "start", "step": 0, "time": 1.0, "n_params": 1234567}]
    events.append({"event": "end", "step": 8, "time": 9.0, "status": "finished"})
    (run / "journal.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    (run / "samples.md").write_text("## step 8\n\nOnce <b>upon</b> a time\n\n")
    (run / "report.html").write_text("<script>1</script>")
    return root


@pytest.fixture(scope="module")
def app(workspace):
    return make_app(StudioConfig(upload_gb=1e-5), workspace, PORT)


@pytest.fixture(scope="module")
def client(app):
    """A browser that came in by the printed address."""
    with TestClient(app[0], base_url=URL) as browser:
        browser.get(f"/?token={app[1]}")
        yield browser


@pytest.fixture
def stranger(app):
    return TestClient(app[0], base_url=URL, follow_redirects=False)
