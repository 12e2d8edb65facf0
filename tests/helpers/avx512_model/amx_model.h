// The instructions of AMX that slm/kernels uses, as plain C++ after the pseudo-code in Intel's manual: a model of their
// results. It traps where the processor would: a tile that is used before its configuration, or a size beyond it.
#pragma once
#include <cstdint>
#include <cstring>

namespace amx {

struct State {
    bool configured = false;
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
    check(c[0] == 1);
    for (int i = 2; i < 16; i++) check(c[i] == 0);
    for (int t = 0; t < 8; t++) {
        memcpy(&state.bytes[t], c + 16 + 2 * t, 2);
        state.rows[t] = c[48 + t];
        check(state.bytes[t] <= 64 && state.rows[t] <= 16);
    }
    memset(state.tile, 0, sizeof state.tile);
    state.configured = true;
}
static inline void release() { state.configured = false; }
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

// Denormal numbers are zero, before and after an operation, whatever MXCSR says. By bits, 16 numbers at once.
typedef uint32_t words __attribute__((vector_size(64)));
typedef float floats __attribute__((vector_size(64)));
static inline floats flushed(floats x) {
    const words bits = (words)x, normal = (words)((bits & 0x7f800000u) != 0u);
    return (floats)(bits & (normal | 0x80000000u));
}
static inline words row(int tile, int r) {
    words out;
    memcpy(&out, state.tile[tile][r], 64);
    return out;
}
// One rounding: the compiler makes it one instruction (-mfma, -ffp-contract=fast).
static inline floats fused(floats a, floats b, floats c) { return flushed(a * b + c); }

// The products of even values and those of odd values are two chains of fused operations from zero; their sum is added.
template <int Sum, int A, int B>
static inline void multiply() {
    check(state.configured && state.bytes[A] / 4 == state.rows[B] && state.bytes[Sum] == 64 && state.bytes[B] == 64);
    floats b_even[16], b_odd[16];
    for (int k = 0; k < state.rows[B]; k++) {
        b_even[k] = flushed((floats)(row(B, k) << 16));
        b_odd[k] = flushed((floats)(row(B, k) & 0xffff0000u));
    }
    for (int m = 0; m < state.rows[Sum]; m++) {
        floats evens = {}, odds = {};
        const words a = row(A, m);
        const floats a_even = flushed((floats)(a << 16)), a_odd = flushed((floats)(a & 0xffff0000u));
        for (int k = 0; k < state.rows[B]; k++) {
            evens = fused(a_even[k] - floats{}, b_even[k], evens);
            odds = fused(a_odd[k] - floats{}, b_odd[k], odds);
        }
        const floats sum = flushed(flushed((floats)row(Sum, m)) + flushed(evens + odds));
        memcpy(state.tile[Sum][m], &sum, 64);
    }
}

}  // namespace amx
