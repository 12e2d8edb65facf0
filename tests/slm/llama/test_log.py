import subprocess
import sys

import pytest

from slm.llama import log
from slm.llama.errors import LlamaError
from slm.llama.model import Model


def test_llama_cpps_own_reason_is_in_the_message(tiny_path, tmp_path):
    raw = tiny_path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight")
    (tmp_path / "renamed.gguf").write_bytes(raw)
    with pytest.raises(LlamaError, match=r"blk\.1\.ffn_up"):
        Model(tmp_path / "renamed.gguf")


def test_the_first_error_is_the_cause(monkeypatch):
    lines = [(2, b"loading"), (4, b"missing "), (5, b"tensor\n"), (3, b"careful\n"), (4, b"failed to load\n")]
    log.clear_log()
    for level, text in lines:
        log._callback(level, text)
    assert log.first_error() == "missing tensor"
    assert log.log_lines() == ["loading", "missing tensor", "careful", "failed to load"]
    log.clear_log()
    assert log.first_error() == "no reason given"


INTERRUPTED = """
import os, signal, sys, threading
from slm.llama import log
from slm.llama.model import Model

def interrupt():
    log.clear_log()
    while not log.log_lines():  # until llama.cpp is in the middle of its work
        pass
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    for _ in range(50):
        Model(sys.argv[1]).close()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_while_llama_cpp_writes_its_log_is_not_lost(tiny_path):
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, str(tiny_path)], capture_output=True, text=True)
    assert done.stdout == "interrupted\n", done.stderr
    assert done.stderr == ""
