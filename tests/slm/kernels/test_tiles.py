"""AMX's kernels leave a thread the tiles that it had: llama.cpp sets them once in a thread, and relies on them."""

import ctypes

import pytest

from slm.kernels.native import FOLDER, VARIANTS
from slm.machine import cpp_build
from tests.helpers.kernels import MODEL, model_flags

SOURCE = """
#include "bf16/operands.h"

extern "C" int kept(int rows) {
    TileConfig others, after;
    for (int t = 0; t < 8; t++) others.rows[t] = rows;
    if (rows) amx::load_config(&others);
    { const TileUnit unit; }
    if (!rows) return !amx::state.configured;
    amx::store_config(&after);
    return amx::state.configured && memcmp(&others, &after, sizeof after) == 0;
}
"""


@pytest.mark.skipif(VARIANTS["avx2"].unavailable() is not None, reason="the model of AMX needs AVX2 and g++")
def test_kernels_give_a_thread_back_the_tiles_it_had(tmp_path):
    source = tmp_path / "tiles.cpp"
    source.write_text(SOURCE)
    amx = VARIANTS["amx"]
    flags = (*model_flags(amx), f"-I{FOLDER}")
    headers = [*(FOLDER / each for each in amx.headers), *sorted(MODEL.glob("*.h"))]
    library = ctypes.CDLL(str(cpp_build.build([source], flags, headers=headers, what="the tiles under test")))
    assert library.kept(0)
    assert library.kept(8)
