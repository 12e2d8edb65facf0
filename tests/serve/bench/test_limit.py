import json
import stat

import pytest

from slm.data.errors import UserError
from slm.serve.bench import limit
from slm.serve.bench.config import BenchOptions
from slm.serve.bench.limit import Limiter, Rates, measure_here, median_rates


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder of llama.cpp's tools, which write down their arguments."""
    rows = {
        "llama-server": [],
        "llama-batched-bench": [{"pl": 1, "speed_pp": 100.0, "speed_tg": 10.0}],
        "llama-bench": [{"avg_ts": 7.0}],
    }
    for name, lines in rows.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/{name}.args\necho a log line\ncat <<'E'\n{text}E\n")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    # Fewer than the logical cores of any machine with two threads per core.
    monkeypatch.setattr(limit, "compute_threads", lambda: 3)
    return tmp_path


def test_the_tools_use_physical_cores(tools, tiny_path):
    options = BenchOptions(clients=[1], extra=[], new_tokens=6, llama_server=str(tools / "llama-server"))
    limiter = Limiter(options, tiny_path, 20)
    limiter.measure()
    assert limiter.source == "llama-batched-bench"
    assert limiter.limit == [Rates(batch=1, prefill=100.0, decode=10.0)]
    assert limiter.single == Rates(batch=1, prefill=7.0, decode=7.0)
    for name in ("llama-batched-bench", "llama-bench"):
        for words in (tools / f"{name}.args").read_text().splitlines():
            assert " -t 3 " in words


def test_a_tool_that_dies_is_one_line(tools, tiny_path):
    (tools / "llama-bench").write_text("#!/bin/sh\necho 'illegal' >&2\nkill -ILL $$\n")
    options = BenchOptions(clients=[1], extra=[], new_tokens=6, llama_server=str(tools / "llama-server"))
    with pytest.raises(UserError, match=r"llama-bench failed \(SIGILL; it said: illegal\); bench.llama_server=off"):
        Limiter(options, tiny_path, 20).measure()


def test_the_library_that_dies_is_one_line(tmp_path, tiny_path, monkeypatch):
    """The child's Python dies where it would load llama.cpp."""
    (tmp_path / "sitecustomize.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(limit, "crash_advice", lambda: "build it again")
    with pytest.raises(
        UserError, match=f"died with SIGSEGV while the limit of {tiny_path.name} was measured; build it"
    ):
        limit.bench_library(tiny_path, [1], prompt_tokens=20, new_tokens=4)


def test_medians():
    several = [Rates(batch=2, prefill=prefill, decode=decode) for prefill, decode in ((1, 30), (3, 10), (2, 20))]
    assert median_rates(several) == Rates(batch=2, prefill=2, decode=20)


def test_the_limit_in_this_process(tiny_path):
    one, three = measure_here(tiny_path, [1, 3], prompt_tokens=20, new_tokens=4)
    assert (one.batch, three.batch) == (1, 3)
    assert min(one.prefill, one.decode, three.prefill, three.decode) > 0
