import sys

import pytest

from slm.data.errors import UserError
from slm.serve.bench import contenders as module
from slm.serve.bench.config import BenchOptions
from slm.serve.bench.contenders import Contender, contenders, find_tool, llama_cpp_server, llama_server, running


def test_other_servers_use_physical_cores(monkeypatch):
    monkeypatch.setattr(module, "compute_threads", lambda: 3)
    for contender, option in (
        (llama_server("llama-server"), "-t"),
        (llama_cpp_server("python", interrupt=False), "--n_threads"),
    ):
        assert contender.command[contender.command.index(option) + 1] == "3"


def test_what_is_left_out_is_noted(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    found, notes = contenders(BenchOptions(options=["serve.slots=2"], llama_cpp_server="off"))
    assert [each.name for each in found] == ["ours"]
    assert found[0].command[-1] == "serve.slots=2"
    assert len(notes) == 1
    assert "bench.llama_server=PATH" in notes[0]
    assert contenders(BenchOptions(llama_server="off", llama_cpp_server="off"))[1] == []


def test_tools_are_found_as_given_next_to_another_or_in_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for folder in ("bin", "build"):
        (tmp_path / folder).mkdir()
        tool = tmp_path / folder / "llama-bench"
        tool.write_text("")
        tool.chmod(0o755)
    build, path = (str(tmp_path / folder / "llama-bench") for folder in ("build", "bin"))
    assert find_tool("llama-bench", build) == build
    assert find_tool("llama-bench", None, next_to=str(tmp_path / "build" / "llama-server")) == build
    assert find_tool("llama-bench", None) == path
    assert find_tool("llama-bench", "off") is None
    assert find_tool("llama-server", None) is None
    with pytest.raises(UserError, match="does not exist"):
        find_tool("llama-bench", str(tmp_path / "nowhere"))


def test_a_server_that_does_not_start_is_an_error_with_its_last_line(tiny_path):
    broken = Contender(name="broken", command=(sys.executable, "-c", "print('first'); print('no such option')"))
    with pytest.raises(UserError, match="broken does not start: no such option"), running(broken, tiny_path):
        pass
