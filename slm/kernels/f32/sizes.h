// The sizes that the f32 kernels and their callers share. Python asks the library for them (sizes.cpp).
#pragma once
#include "vec.h"

constexpr long LOSS_ROWS = 12 * MR;   // positions whose logits are in the caches at once
constexpr long GRADIENT_ROWS = 512;   // positions that a weight gradient's product packs at once
constexpr long NORM_PARTS = 64;       // partial sums of a norm's gradient: a fixed number, so that their order is fixed too
constexpr long MAX_HEAD_DIM = 512;    // values of one head at one position, kept on the stack

// Positions of a sequence, up to a whole panel.
INLINE long padded_length(long T) { return round_up(T, NR); }

// Positions that the scratch of a weight gradient has room for, of m: pairs and their scales need four at least.
INLINE long gradient_rows(long m) { return max_of(4, min_of(m, GRADIENT_ROWS)); }
