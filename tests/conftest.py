"""What every test may use. The numerical tests pin threads so that their figures do not depend on the machine."""

import atexit
import os
import signal
import tempfile
from pathlib import Path

import pytest

from slm.machine.hardware import n_threads, share_cores
from tests.helpers import REPOSITORY

share_cores()  # several workers compute at the same time: none waits for another's spinning threads
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, n_threads() // workers)))
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach for the network
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["SLM_MAKE"] = "1"  # messages advise make's targets, whoever started the tests


def _trust_one_authority() -> None:
    """Every client of HTTP reads the certificates that it trusts, even for http://: 35 ms for all, 1 ms for one."""
    import certifi

    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = Path(certifi.where()).read_text(encoding="utf-8").split(begin, 1)[1].split(end, 1)[0]
    with tempfile.NamedTemporaryFile("w", prefix="slm-tests-", suffix=".pem", delete=False) as file:
        file.write(f"{begin}{first}{end}\n")
    os.environ["SSL_CERT_FILE"] = file.name
    atexit.register(Path(file.name).unlink, missing_ok=True)


if "SSL_CERT_FILE" not in os.environ:
    _trust_one_authority()

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts background jobs deaf to Ctrl-C, and they hand that on to the programs whose Ctrl-C is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST = (
    "train/test_distributed",
    "train/test_reliability",
    "train/test_main",
    "slm/command/test_demo",
    "slm/kernels/test_fused",
    "train/bench_recipe/test_bench_recipe",
    "test_lifecycle",
    "serve/test_reliability_load",
    "browser/test_page",
    "slm/kernels/test_choice",
    "examples/test_lifecycle_notebook",
    "serve/test_life",
    "test_wheel",
    "export/test_quantize",
    "slm/test_doctor",
    "export/test_pipeline",
)
"""Files that take longest, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Workers take whole files in this order: none is left with a long one while the other has nothing to do."""
    order = {REPOSITORY / "tests" / f"{name}.py": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real text for measurements (WikiText's raw test set, Gutenberg, GPT-2's vocabulary); skips where absent."""
    folder = Path(os.environ.get("SLM_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}: set SLM_TEST_DATA to the folder that holds wikitext/ and gutenberg/")
    return folder


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY
