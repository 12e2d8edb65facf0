"""What every test may use. The numerical tests pin threads so that their figures do not depend on the machine."""

import atexit
import gc
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from slm.machine.hardware import n_threads, share_cores
from slm.machine.memory import available_bytes
from tests.helpers import REPOSITORY

share_cores()  # several workers compute at the same time: none waits for another's spinning threads
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, n_threads() // workers)))
# Programs under test, and the workers, do not compile all of the sources and tests anew at each start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("SLM_CHECK_CALLS", "1")  # what native kernels are given is checked
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


WORKER_BYTES = 2 * 2**30
"""Memory of one worker, with the programs that its tests start."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Three workers for two cores (``-n auto``), because tests also wait; fewer where memory is short."""
    cores = n_threads()
    return max(1, min(cores + max(1, cores // 2), available_bytes() // WORKER_BYTES))


LONGEST = (
    "slm/kernels/test_fused",
    "browser/test_studio",
    "train/test_resume",
    "train/test_distributed",
    "train/test_reliability",
    "train/bench_recipe/test_bench_recipe",
    "test_portability",
    "browser/test_page",
    "serve/test_life",
    "slm/kernels/test_sanitizers",
    "train/tools/test_bench",
    "train/test_step",
    "browser/test_conversations",
    "train/tune/test_tune",
    "serve/test_several_models",
    "slm/command/test_demo",
    "serve/test_reliability_deaths",
    "slm/kernels/test_other_compilers",
    "train/test_main",
    "test_lifecycle",
    "browser/test_docs",
    "serve/test_reliability_load",
    "train/qat/test_quantized_run",
    "browser/test_panels",
    "data/stream/test_conversations",
    "data/stream/test_loader",
    "export/test_quantize",
    "serve/test_load",
    "examples/test_lifecycle_notebook",
    "train/sweep/test_sweep",
    "train/report/test_watch",
    "data/test_scale",
    "studio/jobs/test_queue",
    "train/run/test_questions",
    "serve/test_reliability_files",
    "train/budget/test_machine",
)
"""Files that take longest, the longest first."""
WAITING = ("browser", "serve")
"""Rooms whose tests often wait. Those of the others compute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Workers take whole files in this order: none is left with a long one while the others have nothing to do. What
    waits and what computes lies mixed."""
    tests = REPOSITORY / "tests"
    order: dict[Path, float] = {}
    kinds: tuple[list[Path], list[Path]] = ([], [])
    for path in dict.fromkeys(item.path for item in items):
        kinds[path.is_relative_to(tests) and path.relative_to(tests).parts[0] in WAITING].append(path)
    for files in kinds:
        order |= {path: (number + 0.5) / len(files) for number, path in enumerate(files)}
    order |= {tests / f"{name}.py": number - len(LONGEST) for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order[item.path])


def pytest_collection_finish() -> None:
    """Thousands of tests and the modules under test stay: the garbage collector need not look at them again."""
    gc.collect()
    gc.freeze()


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


@pytest.fixture(autouse=True)
def _own_tally():
    """Each test counts its bad records alone: a worker process begins with those that its parent has counted."""
    from slm.data.bad_records import TALLY

    with TALLY.apart():
        yield
