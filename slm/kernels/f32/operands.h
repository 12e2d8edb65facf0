// The operands of the products of layers and head, packed: in f32, or (SLM_INTEGERS=16 or 8, their bits) in integers. Units
// of two or four of those take the places of the f32 values and need a half or a quarter of them; scales follow. All ways
// have the same names.
#pragma once
#include "values.h"

#ifdef SLM_INTEGERS
#if SLM_INTEGERS == 16
#include "int16.h"
#else
#include "int8.h"
#endif
#endif
#include "../tile.h"

constexpr long DEPTH = 512;  // values of the reduced dimension that a task takes at once, at most
constexpr long STRIPS = 12;  // strips of MR rows in a task
constexpr long GRADIENT_STRIPS = STRIPS;

// Values that it takes: as few blocks as there can be, of like sizes, each of whole vectors in integers.
INLINE long block_of(long depth) { return round_up(ceil_div(depth, ceil_div(depth, DEPTH)), max_of(LINE, NR)); }

// NR columns of rows [0, rows) of a matrix as one panel: out [rows][NR].
INLINE void pack_rows(const float* from, long ld, long rows, float* out) {
    for (long i = 0; i < rows; i++) store_values(out + i * NR, load(from + i * ld), load(from + i * ld + W));
}
INLINE void pack_weight_rows(const float* from, long ld, long rows, float* out) { pack_rows(from, ld, rows, out); }

#ifdef SLM_INTEGERS
#include "integers.h"
#else

constexpr long VALUE_BYTES = 4, L2_BYTES = 160 * 1024, STRIPS_AT_ONCE = 1;

// Values of the vocabulary that the head's backward product takes at once.
INLINE long head_block(long words) { return min_of(words, 1024); }

INLINE void pack_weight(const float* from, long depth, float* out) { pack_columns(from, depth, W, W, depth, out, NR); }
INLINE void pack_positions(const float* x, long ld, long rows, float* out) { pack_rows(x, ld, rows, out); }
// `count` columns of rows [0, rows), MR at most, as a strip: out [rows][MR]; what is missing is zero.
INLINE void pack_gradients(const float* dy, long ld, long rows, long count, float* out, long) {
    for (long i = 0; i < rows; i++)
        for (long r = 0; r < MR; r++) out[i * MR + r] = r < count ? dy[i * ld + r] : 0.0f;
}
// MR columns of dy with NR of x: sums over the positions.
template <class Use, class Ahead>
INLINE void gradient_tile(long count, long rows, const float* dy, const float* x, Use&& use, Ahead&& ahead, bool, float*, long) {
    tile(count, rows, dy, 1, MR, x, use, ahead);
}

#endif

// Strips of dy [rows, n], panels of x [rows, k], `apart` values for each of their columns. A worksharing loop.
INLINE void pack_for_gradient(const float* dy, long ldy, long n, const float* x, long ldx, long k, long rows, long apart,
                              float* packed_dy, float* packed_x) {
#pragma omp for schedule(static) nowait
    for (long p = 0; p < k; p += NR) pack_positions(x + p, ldx, rows, packed_x + p * apart);
#pragma omp for schedule(static)
    for (long c = 0; c < n; c += STRIPS_AT_ONCE * MR)
        pack_gradients(dy + c, ldy, rows, n - c, packed_dy + c * apart, apart * MR);
}
