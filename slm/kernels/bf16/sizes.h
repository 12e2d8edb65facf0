// The sizes that the kernels and their callers share. Python asks the library for them (sizes.cpp): it allocates the
// buffers that the kernels fill.
#pragma once
#include <cstdint>

#include "../whole.h"

using value = uint16_t;   // an activation: bf16
using packed = int32_t;   // a pair of them
constexpr long PAIR = 2;

#ifdef SLM_AMX
constexpr long MR = 32;  // rows of a block: two tiles
#else
constexpr long MR = 8;   // rows of a tile; more would share too few sets of the first cache when rows are 2^n apart
#endif
constexpr long NR = 32;  // columns of a tile, and the width of a packed panel; models' widths are multiples of it

constexpr long LOSS_ROWS = 192;          // positions with logits in the cache at once
constexpr long GRADIENT_ROWS = 1024;     // positions that a weight gradient's product packs at once

constexpr long SCORES_APART = NR;        // scores between two rows of them

// Positions of a sequence, up to a whole panel.
INLINE constexpr long padded_length(long T) { return ceil_div(T, NR) * NR; }

// Positions that a weight gradient packs at once, of m, filled up to whole tiles.
INLINE constexpr long gradient_block(long m) { return min_of(padded_length(m), GRADIENT_ROWS); }

// Pairs from one packed column to the next: those of a block, and some more, since panels 2^n bytes apart would share few
// sets of the caches.
INLINE constexpr long gradient_apart(long m) { return gradient_block(m) / 2 + 16; }

// Pairs of scratch for slm_weight_gradient of [n, k] from m positions.
INLINE constexpr long gradient_scratch(long m, long n, long k) { return gradient_apart(m) * (n + k); }
