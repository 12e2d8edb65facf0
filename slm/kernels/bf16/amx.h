// The instructions of AMX (Intel's manual, volume 2: LDTILECFG, STTILECFG, TILELOADD, TDPBF16PS, TILESTORED).
//
// They are written out here because GCC's own wrappers do not tell the compiler which memory an instruction reads: stores
// that it needs may be dropped as dead. The process must have asked Linux for the tiles (slm/kernels/native.py). Tests put
// a plain C++ model of the same functions in their place (SLM_AMX_MODEL).
#pragma once
#include <cstdint>

#include "sizes.h"

#ifdef SLM_AMX_MODEL
#include "amx_model.h"
#else
namespace amx {

// 64 bytes: palette 1 (0: no tiles), then of each of 8 tiles its bytes in a row and its rows.
INLINE void load_config(const void* config) { asm volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])config)); }
INLINE void store_config(void* config) { asm volatile("sttilecfg %0" : "=m"(*(char(*)[64])config)); }

// What has been stored up to here is in memory before the tiles are loaded that follow.
INLINE void stores_are_done() { asm volatile("" ::: "memory"); }

// Up to 16 rows of 64 bytes, `stride` bytes from row to row.
template <int T>
INLINE void load(const void* from, long stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T));
}
template <int T>
INLINE void store(void* to, long stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
}
template <int T>
INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
// Sum (16 x 16 f32) += A (16 rows of 16 pairs) times B (16 rows, one a pair, of 16 columns).
template <int Sum, int A, int B>
INLINE void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(A), "i"(B));
}

}  // namespace amx
#endif

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
static const TileConfig TILE_CONFIG;

// The thread's tiles. Loaded anew in each parallel region: torch's products share the threads and set tiles of their own.
// Afterwards the thread has the tiles that it had before: llama.cpp sets a thread's tiles once, and then relies on them.
struct TileUnit {
    TileConfig before;

    TileUnit() {
        amx::store_config(&before);
        amx::load_config(&TILE_CONFIG);
    }
    ~TileUnit() { amx::load_config(&before); }
    TileUnit(const TileUnit&) = delete;
};
