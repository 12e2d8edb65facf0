// The operands of the products of layers and head, packed: in f32, or (SLM_INTEGERS=16 or 8, their bits) in integers. Units
// of two or four of those take the places of the f32 values and need a half or a quarter of them; scales follow. All ways
// have the same names.
#pragma once

#include "tile.h"
#ifdef SLM_INTEGERS
#if SLM_INTEGERS == 16
#include "int16.h"
#else
#include "int8.h"
#endif
#endif

constexpr long DEPTH = 512;  // values of the reduced dimension that a task takes at once, at most
constexpr long STRIPS = 12;  // strips of MR rows in a task

// Values that it takes: as few blocks as there can be, of like sizes, each of whole vectors in integers.
INLINE long block_of(long depth) { return round_up(ceil_div(depth, ceil_div(depth, DEPTH)), max_of(LINE, NR)); }

#ifdef SLM_INTEGERS

constexpr bool INTEGERS = true;
constexpr long VALUE_BYTES = 4 / UNIT; // of a packed panel
// Packed panels that a task keeps in its core's second-level cache: 512 KiB with AVX2 alone, 1 MiB or more with VNNI.
constexpr long L2_BYTES = (W == 16 ? 640 : 320) * 1024;
constexpr long STRIPS_AT_ONCE = 8;     // strips of dy that are packed at once, so that each cache line is read once

// One tile of R rows and NR columns over `units`, as tile_of for f32; the scales are those of its rows and columns.
template <int R, class Use, class Ahead>
INLINE void unit_tile_of(long units, const int32_t* A, long ra, long ka, const float* row_scales, const int32_t* B,
                         const float* column_scales, Use&& use, Ahead&& ahead) {
    ivec c[R][2];
    unrolled<R>([&](auto r) ALWAYS { c[r][0] = beginning(column_scales), c[r][1] = beginning(column_scales + W); });
    const auto multiply = [](ivec& c0, ivec& c1, const int32_t& a, ivec b0, ivec b1) ALWAYS { multiply_add(c0, c1, a, b0, b1); };
    add_products<R, STEPS>(c, units, A, ra, ka, B, multiply, ahead);
    const vec left = load(column_scales), right = load(column_scales + W);
    unrolled<R>([&](auto r) ALWAYS {
        const float scale = row_scales[r];
        use(r, __builtin_convertvector(c[r][0], vec) * left * scale, __builtin_convertvector(c[r][1], vec) * right * scale);
    });
}

// A tile of 1 to MR rows.
template <class Use, class Ahead>
INLINE void unit_tile(long rows, long units, const int32_t* A, long ra, long ka, const float* row_scales, const int32_t* B,
                      const float* column_scales, Use&& use, Ahead&& ahead) {
    by_rows(rows, [&](auto count, long first) ALWAYS {
        unit_tile_of<count>(units, A + first * ra, ra, ka, row_scales + first, B, column_scales,
                            [&](int r, vec x, vec y) ALWAYS { use((int)(r + first), x, y); }, ahead);
    });
}

// Up to COUNT rows of A, for one block of the depth; by default as many as a task has.
template <long COUNT = STRIPS * MR> struct Rows {
    static constexpr long STRIDE = DEPTH / UNIT + LINE;  // rows 2^n bytes apart would share few sets of the first cache
    alignas(64) int32_t units[COUNT][STRIDE];
    float scales[COUNT];

    void take(const float* A, long lda, long rows, long depth) {
        for (long r = 0; r < rows; r++) scales[r] = units_of_row(A + r * lda, depth, units[r]);
    }
    // `rows` of them from `first` on with one panel's block, as `tile`.
    template <class Use, class Ahead>
    INLINE void product(long first, long rows, long depth, const float* B, Use&& use, Ahead&& ahead) const {
        const long count = depth / UNIT;
        unit_tile(rows, count, units[first], STRIDE, 1, scales + first, (const int32_t*)B, B + count * NR, use, ahead);
    }
};

// W rows of a weight, `depth` values each, as columns of B.
INLINE void pack_weight(const float* from, long depth, float* out) {
    int32_t units[DEPTH / UNIT];
    for (long k0 = 0, block = block_of(depth); k0 < depth; k0 += block)
        for (long r = 0, count = min_of(block, depth - k0); r < W; r++) {
            units_of_column(from + r * depth + k0, count, units, out + (k0 + count / UNIT) * NR + r);
            for (long i = 0; i < count / UNIT; i++) ((int32_t*)out)[k0 * NR + i * NR + r] = units[i];
        }
}
// A panel of B in f32, to be read as `product` reads it from now on.
INLINE void finish_panel(float* panel, long depth) {
    for (long k0 = 0, block = block_of(depth); k0 < depth; k0 += block) {
        float* own = panel + k0 * NR;
        units_of_columns<2, true>(min_of(block, depth - k0), [&](long i, int g) ALWAYS { return load(own + i * NR + g * W); },
                            (int32_t*)own, NR, W);
    }
}
// NR columns of x in `rows` positions.
INLINE void pack_positions(const float* x, long ld, long rows, float* out) {
    units_of_columns<2, true>(rows, [&](long i, int g) ALWAYS {
        will_read(x + (i + 16) * ld + g * W);
        return load(x + i * ld + g * W);
    }, (int32_t*)out, NR, W);
}
// STRIPS_AT_ONCE strips of dy's columns in `rows` positions, `apart` values from one to the next; of the columns there may be
// fewer: `count`.
INLINE void pack_gradients(const float* dy, long ld, long rows, long count, float* out, long apart) {
    constexpr int G = STRIPS_AT_ONCE;
    if (count >= G * MR + W - MR)
        return units_of_columns<G, false>(rows, [&](long i, int g) ALWAYS {
            will_read(dy + (i + 16) * ld + g * MR);
            return load(dy + i * ld + g * MR);
        }, (int32_t*)out, MR, apart);
    for (long first = 0; first < min_of(count, G * MR); first += MR)
        units_of_columns<1, false>(rows, [&](long i, int) ALWAYS { return load_first(dy + i * ld + first, min_of(MR, count - first)); },
                            (int32_t*)out + first / MR * apart, MR, 0);
}
// MR columns of dy with NR of x: sums over the positions, as `tile`.
template <class Use, class Ahead>
INLINE void gradient_tile(long count, long rows, const float* dy, const float* x, Use&& use, Ahead&& ahead) {
    const long units = ceil_div(rows, UNIT);
    unit_tile(count, units, (const int32_t*)dy, 1, MR, dy + units * MR, (const int32_t*)x, x + units * NR, use, ahead);
}

#else

constexpr bool INTEGERS = false;
constexpr long VALUE_BYTES = 4, L2_BYTES = 160 * 1024, STRIPS_AT_ONCE = 1;

template <long COUNT = STRIPS * MR> struct Rows {
    const float* A;
    long lda;

    void take(const float* from, long ld, long, long) { A = from, lda = ld; }
    template <class Use, class Ahead>
    INLINE void product(long first, long rows, long depth, const float* B, Use&& use, Ahead&& ahead) const {
        tile(rows, depth, A + first * lda, lda, 1, B, use, ahead);
    }
};

INLINE void pack_weight(const float* from, long depth, float* out) { pack_columns(from, depth, W, W, depth, out, NR); }
INLINE void finish_panel(float*, long) {}
INLINE void pack_positions(const float* x, long ld, long rows, float* out) { pack_rows(x, ld, rows, out); }
INLINE void pack_gradients(const float* dy, long ld, long rows, long count, float* out, long) {
    pack_strip(dy, ld, rows, min_of(count, MR), out);
}
template <class Use, class Ahead>
INLINE void gradient_tile(long count, long rows, const float* dy, const float* x, Use&& use, Ahead&& ahead) {
    tile(count, rows, dy, 1, MR, x, use, ahead);
}

#endif
