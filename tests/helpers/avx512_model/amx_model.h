// The instructions of AMX that slm/kernels uses, as plain C++ after the pseudo-code in Intel's manual: a model of their
// results. It traps where the processor would: a tile that is used before its configuration, or a size beyond it.
#pragma once
#include <cstdint>
#include <cstring>

namespace amx {

struct State {
    bool configured = false;
    uint8_t config[64] = {};
    uint8_t rows[8];
    uint16_t bytes[8];
    alignas(64) uint32_t tile[8][16][16];
};
inline thread_local State state;

static inline void check(bool right) {
    if (!right) __builtin_trap();
}

static inline void load_config(const void* config) {
    const uint8_t* c = (const uint8_t*)config;
    memcpy(state.config, c, sizeof state.config);
    state.configured = c[0] != 0;
    if (!state.configured) return;
    check(c[0] == 1);
    for (int i = 2; i < 16; i++) check(c[i] == 0);
    for (int t = 0; t < 8; t++) {
        memcpy(&state.bytes[t], c + 16 + 2 * t, 2);
        state.rows[t] = c[48 + t];
        check(state.bytes[t] <= 64 && state.rows[t] <= 16);
    }
    memset(state.tile, 0, sizeof state.tile);
}
static inline void store_config(void* config) { memcpy(config, state.config, sizeof state.config); }
static inline void stores_are_done() {}

template <int T>
static inline void load(const void* from, long stride) {
    check(state.configured);
    memset(state.tile[T], 0, sizeof state.tile[T]);
    for (int r = 0; r < state.rows[T]; r++) memcpy(state.tile[T][r], (const char*)from + r * stride, state.bytes[T]);
}
template <int T>
static inline void store(void* to, long stride) {
    check(state.configured);
    for (int r = 0; r < state.rows[T]; r++) memcpy((char*)to + r * stride, state.tile[T][r], state.bytes[T]);
}
template <int T>
static inline void zero() {
    check(state.configured);
    memset(state.tile[T], 0, sizeof state.tile[T]);
}

typedef uint32_t words __attribute__((vector_size(64)));
typedef float floats __attribute__((vector_size(64)));
static inline words row(const State& tiles, int tile, int r) {
    words out;
    memcpy(&out, tiles.tile[tile][r], 64);
    return out;
}
// The products of even values and those of odd values are two chains of fused operations from zero; their sum is added.
// The compiler makes each one instruction with one rounding (-mfma, -ffp-contract=fast).
static inline void add_products(State& tiles, int sum, int a, int b) {
    floats b_even[16], b_odd[16];
    const int pairs = tiles.rows[b];
    for (int k = 0; k < pairs; k++) {
        const words values = row(tiles, b, k);
        b_even[k] = (floats)(values << 16);
        b_odd[k] = (floats)(values & 0xffff0000u);
    }
    for (int m = 0; m < tiles.rows[sum]; m++) {
        const words values = row(tiles, a, m);
        const floats a_even = (floats)(values << 16), a_odd = (floats)(values & 0xffff0000u);
        floats evens = {}, odds = {};
        for (int k = 0; k < pairs; k++) {
            evens = a_even[k] * b_even[k] + evens;
            odds = a_odd[k] * b_odd[k] + odds;
        }
        const floats added = (floats)row(tiles, sum, m) + (evens + odds);
        memcpy(tiles.tile[sum][m], &added, 64);
    }
}

// Denormal numbers are zero, before and after an operation, whatever the program's MXCSR says: bits 6 and 15 ask the
// processor for that. Nothing moves across, because all values come from memory and go there.
template <int Sum, int A, int B>
static inline void multiply() {
    State& tiles = state;
    check(tiles.configured && tiles.bytes[A] / 4 == tiles.rows[B] && tiles.bytes[Sum] == 64 && tiles.bytes[B] == 64);
    const unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before | 0x8040);
    asm volatile("" ::: "memory");
    add_products(tiles, Sum, A, B);
    asm volatile("" ::: "memory");
    __builtin_ia32_ldmxcsr(before);
}

}  // namespace amx
