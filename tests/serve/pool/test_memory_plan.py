"""What the models together may take."""

from serve.pool import memory_plan
from slm.machine import memory

MIB = 2**20


def test_the_budget_does_not_count_the_page_cache_as_used(tmp_path, monkeypatch):
    # A model's file that was read stays in the page cache, and fills the control group's figure with it.
    (tmp_path / "memory.max").write_text(f"{10 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{9 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 100\ninactive_file {8 * MIB}\n")
    own = tmp_path / "own"
    own.write_text("0::/\n")
    monkeypatch.setattr(memory.available_bytes, "__defaults__", (tmp_path, own))
    assert memory_plan.budget_bytes(0) == 9 * MIB * 4 // 5
