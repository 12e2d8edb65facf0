// The sizes that the f32 kernels and their callers share. Python asks the library for them (sizes.cpp).
#pragma once
#include "vec.h"

using value = float;   // an activation
using packed = float;
constexpr long PAIR = 1;

#if defined(SLM_NEON) || SLM_LANES == 16
constexpr long REGISTERS = 32;
#else
constexpr long REGISTERS = 16;
#endif
constexpr long NR = 2 * W;      // columns of a tile, and the width of a packed panel
constexpr long MR = REGISTERS == 32 ? 12 : 6;  // rows of a tile: 2 MR sums, two columns and a value of A fill the registers

constexpr long LOSS_ROWS = 12 * MR;   // positions with logits in the caches at once
constexpr long GRADIENT_ROWS = 512;   // positions that a weight gradient's product packs at once
constexpr long SCORES_APART = 16;     // scores between two rows of them: a cache line

// Positions of a sequence, up to a whole panel.
INLINE long padded_length(long T) { return round_up(T, NR); }

// Positions that a weight gradient packs at once, of m: pairs and their scales need room for four at least.
INLINE long gradient_block(long m) { return max_of(4, min_of(m, GRADIENT_ROWS)); }
INLINE long gradient_apart(long m) { return gradient_block(m); }

// Values of scratch for slm_weight_gradient of [n, k] from m positions: strips of dy (the last one filled up), panels of x.
INLINE long gradient_scratch(long m, long n, long k) { return gradient_apart(m) * (k + round_up(n, MR)); }
