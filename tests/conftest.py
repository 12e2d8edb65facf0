"""What every test may use. The numerical tests pin threads so that their figures do not depend on the machine."""

import os
import signal
from pathlib import Path

import pytest

from tests.helpers import REPOSITORY

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach for the network
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["SLM_MAKE"] = "1"  # messages advise make's targets, whoever started the tests

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts background jobs deaf to Ctrl-C, and they hand that on to the programs whose Ctrl-C is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
