// The sizes that the f32 kernels and their callers share. Python asks the library for them (sizes.cpp).
#pragma once
#include "vec.h"

using packed = float;
constexpr long PAIR = 1;

constexpr long LOSS_ROWS = 12 * MR;   // positions whose logits are in the caches at once
constexpr long GRADIENT_ROWS = 512;   // positions that a weight gradient's product packs at once
constexpr long SCORES_APART = 16;     // scores between two rows of them: a cache line

// Positions of a sequence, up to a whole panel.
INLINE long padded_length(long T) { return round_up(T, NR); }

// Positions that the scratch of a weight gradient has room for, of m: pairs and their scales need four at least.
INLINE long gradient_rows(long m) { return max_of(4, min_of(m, GRADIENT_ROWS)); }

// Values of scratch for slm_weight_gradient of [n, k] from m positions: strips of dy (the last one filled up), panels of x.
INLINE long gradient_scratch(long m, long n, long k) { return gradient_rows(m) * (k + round_up(n, MR)); }
