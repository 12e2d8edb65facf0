// Whole numbers, requests to memory and sizes: what the kernels of all number formats share.
#pragma once

#define INLINE inline __attribute__((always_inline))
// For lambdas that only prefetch: GCC drops calls of a function without effects before it inlines them. Tests of results
// alone say -DALWAYS=, which compiles several times as fast.
#ifndef ALWAYS
#define ALWAYS __attribute__((always_inline))
#endif

constexpr long NORM_PARTS = 64;     // partial sums of a norm's gradient: a fixed number, so that their order is fixed too
constexpr long MAX_HEAD_DIM = 512;  // values of one head at one position, kept on the stack

INLINE constexpr long ceil_div(long a, long b) { return (a + b - 1) / b; }
INLINE constexpr long round_up(long a, long b) { return ceil_div(a, b) * b; }
INLINE constexpr long min_of(long a, long b) { return a < b ? a : b; }
INLINE constexpr long max_of(long a, long b) { return a > b ? a : b; }

// Ask for a cache line: into the second cache, or the first one. No address is wrong here, outside of any memory either.
INLINE void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }
INLINE void will_read(const void* p) { __builtin_prefetch(p, 0, 3); }
INLINE void will_write(void* p) { __builtin_prefetch(p, 1, 3); }

// What a product may ask memory for while it runs, where there is nothing to ask for.
struct Nothing {
    INLINE void operator()(long) const {}
};
