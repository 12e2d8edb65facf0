"""The roofline is measured here; loops that this processor cannot run go through the model of their instructions."""

import pytest

from slm.kernels import roofline
from slm.kernels.roofline import Roofline
from slm.machine.cpp_build import compiler
from tests.helpers.kernels import MODEL

needs_compiler = pytest.mark.skipif(compiler(gcc_only=True) is None, reason="no g++")
EXAMPLE = Roofline(
    threads=4,
    register_peak_gflops={
        "amx": {1: 3000.0, 4: 12000.0},
        "avx512bf16": {1: 80.0, 4: 320.0},
        "avx512": {1: 90.0, 4: 350.0},
    },
    read_gb_per_s=40.0,
    read_mib=256,
)


@needs_compiler
def test_this_machines_roofline():
    found = roofline.measure(2)
    assert found is not None
    (rates,) = [rates for name, rates in found.register_peak_gflops.items() if roofline.TITLES[name].startswith("f32")]
    assert set(rates) == {1, 2}
    assert all(1 < rate < 2000 for rate in rates.values()), "GFLOP/s of one or two cores"
    assert rates[2] > 1.2 * rates[1]
    assert 0.1 < found.read_gb_per_s < 2000
    assert found.read_mib >= 1
    assert found.record()["register_peak_gflops"]


def test_without_a_compiler_there_is_no_roofline(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert roofline.measure(1) is None


@needs_compiler
def test_the_loops_for_amx_and_avx512_bf16_keep_to_their_instructions():
    """The model traps on a tile that is not configured."""
    flags = ("-O1", "-Wno-psabi", f"-I{MODEL}", "-D__AVX512BF16__", "-D__AMX_BF16__", "-DSLM_AMX_MODEL")
    library = roofline.open_library(flags)
    assert library.slm_amx_peak(2, 0.001) > 0
    assert library.slm_avx512bf16_peak(2, 0.001) > 0
    assert library.slm_f32_lanes() == 4
    assert library.slm_read_rate(1 << 20, 1, 0.001) == 0, "less than a portion"


def test_the_peak_is_that_of_the_fastest_instructions_in_a_number_format():
    assert EXAMPLE.peak("bf16") == 12000
    assert EXAMPLE.peak("f32") == 350
    assert (
        Roofline(threads=1, register_peak_gflops={"avx2": {1: 9.0}}, read_gb_per_s=1, read_mib=1).peak("bf16") is None
    )
    assert EXAMPLE.decode_bound(80e6) == 500
    assert EXAMPLE.rows()[0] == ["register peak, bf16 (AMX)", "3,000 with 1 thread, 12,000 with 4 threads (GFLOP/s)"]
    assert EXAMPLE.rows()[-1] == ["memory bandwidth", "40.0 GB/s read by all threads"]


def test_the_array_is_larger_than_all_caches(tmp_path, monkeypatch):
    for cpu, (shared, size) in enumerate([("0-1", "32768K"), ("0-1", "32768K"), ("2-3", "98304K"), ("2-3", "98304K")]):
        folder = tmp_path / f"cpu{cpu}" / "cache" / "index3"
        folder.mkdir(parents=True)
        (folder / "shared_cpu_list").write_text(shared)
        (folder / "size").write_text(size + "\n")
    caches = roofline.last_level_caches(tmp_path)
    assert caches == 128 << 20
    assert roofline.last_level_caches(tmp_path / "nothing") == 0
    monkeypatch.setattr(roofline, "available_bytes", lambda: 64 << 30)
    monkeypatch.setattr(roofline, "last_level_caches", lambda: caches)
    assert roofline.read_size(2) == 512 << 20
    monkeypatch.setattr(roofline, "available_bytes", lambda: 1 << 30)
    assert roofline.read_size(2) == 256 << 20
