// The sizes that the kernels and their callers share. Python asks the library for them (sizes.cpp): it allocates the
// buffers that the kernels fill.
#pragma once

#define INLINE inline __attribute__((always_inline))

#ifdef SLM_AMX
constexpr long MR = 32;  // rows of a block: two tiles
#else
constexpr long MR = 8;   // rows of a tile; more would share too few sets of the first cache when rows are 2^n apart
#endif
constexpr long NR = 32;  // columns of a tile, and the width of a packed panel; models' widths are multiples of it

constexpr long LOSS_ROWS = 192;          // positions whose logits are in the cache at once
constexpr long GRADIENT_ROWS = 1024;     // positions that a weight gradient's product packs at once
constexpr long NORM_PARTS = 64;          // partial sums of a norm's gradient: a fixed number, so that their order is too
constexpr long MAX_HEAD_DIM = 512;       // values of one head at one position, kept on the stack

INLINE constexpr long ceil_div(long a, long b) { return (a + b - 1) / b; }
INLINE constexpr long min_of(long a, long b) { return a < b ? a : b; }
INLINE constexpr long max_of(long a, long b) { return a > b ? a : b; }

// Positions of a sequence, up to a whole panel.
INLINE constexpr long padded_length(long T) { return ceil_div(T, NR) * NR; }

// Positions that a weight gradient packs at once, of m, filled up to whole tiles.
INLINE constexpr long gradient_block(long m) { return min_of(padded_length(m), GRADIENT_ROWS); }

// Pairs from one packed column to the next: those of a block, and some more, since panels 2^n bytes apart would share few
// sets of the caches.
INLINE constexpr long gradient_apart(long m) { return gradient_block(m) / 2 + 16; }
