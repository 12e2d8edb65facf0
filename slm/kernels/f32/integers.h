// What products in integers of 16 and of 8 bits share: packing, tiles and scales. How large values are (Sizes, MOST), and how
// UNIT of them lie in 32 bits and are multiplied, stands in int16.h and int8.h.
#pragma once

constexpr bool INTEGERS = true;
constexpr long VALUE_BYTES = 4 / UNIT; // of a packed panel
// Packed panels that a task keeps in its core's second-level cache: 512 KiB with AVX2 alone, 1 MiB or more with VNNI.
constexpr long L2_BYTES = (W == 16 ? 640 : 320) * 1024;
constexpr long STRIPS_AT_ONCE = 8;     // strips of dy that are packed at once, so that each cache line is read once

// For each width: whole numbers; the first `count` of W values, the others zero.
#if SLM_LANES == 16

INLINE ivec rounded(vec x) { return (ivec)_mm512_cvtps_epi32(x); }
INLINE vec load_first(const float* p, long count) { return _mm512_maskz_loadu_ps((1u << count) - 1, p); }

#else

INLINE ivec rounded(vec x) { return (ivec)_mm256_cvtps_epi32(x); }
INLINE vec load_first(const float* p, long count) {
    ivec own;
    for (int i = 0; i < W; i++) own[i] = i < count ? -1 : 0;
    return _mm256_maskload_ps(p, (__m256i)own);
}

#endif

INLINE int32_t sum_of(ivec x) {
    return ((ivec)folded((vec)x, [](vec a, vec b) ALWAYS { return (vec)((ivec)a + (ivec)b); }))[0];
}

INLINE long head_block(long words) { return block_of(words); }

// A row of `depth` values (a multiple of 2 W) as units. Returns the scale that brings products back; `sum`: of its integers,
// where a column begins with them.
INLINE float units_of_values(const float* from, long depth, int32_t* out, int32_t& sum) {
    Sizes a, b;
    for (long k = 0; k < depth; k += 2 * W) {
        a.take(load(from + k));
        b.take(load(from + k + W));
    }
    const float size = Sizes::of_row(a, b), scale = size > 0 ? MOST / size : 0.0f;
    ivec sums = {};
    for (long k = 0; k < depth; k += 2 * W) {
        const ivec left = rounded(load(from + k) * scale), right = rounded(load(from + k + W) * scale);
        if (OFFSET) sums += left + right;
        store_units(out + k / UNIT, left, right);
    }
    sum = OFFSET ? sum_of(sums) : 0;
    return size * (1.0f / MOST);
}

// A row of A; returns its scale.
INLINE float units_of_row(const float* from, long depth, int32_t* out) {
    int32_t sum;
    const float scale = units_of_values(from, depth, out, sum);
    for (long i = 0; OFFSET && i < depth / UNIT; i++) out[i] ^= OFFSET;
    return scale;
}

// What sums of W columns begin with: it follows the scales of a block's NR columns.
INLINE ivec beginning(const float* column_scales) { return OFFSET ? load((const int32_t*)column_scales + NR) : ivec{}; }

// `rows` rows of G times W columns, the W of group g in row i at(i, g), as units of rows: out[g * apart + i / UNIT * stride +
// column] and, at the end of each group, its columns' scales. OF_B: columns of B, whose beginnings follow; else rows of A.
template <int G, bool OF_B, class At> INLINE void units_of_columns(long rows, At&& at, int32_t* out, long stride, long apart) {
    Sizes sizes[G];
    vec to[G];
    ivec sums[G];
    for (long i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int g = 0; g < G; g++) sizes[g].take(at(i, g));
#pragma GCC unroll 8
    for (int g = 0; g < G; g++) {
        const vec size = sizes[g].of_columns();
        to[g] = choose(size > 0.0f, MOST / size, vec{});
        sums[g] = ivec{};
    }
    auto put = [&](long i, auto count) ALWAYS {
#pragma GCC unroll 8
        for (int g = 0; g < G; g++) {
            ivec unit = {};
            unrolled<count>([&](auto u) ALWAYS {
                const ivec whole = rounded(at(i + u, g) * to[g]);
                unit |= u + 1 < UNIT ? (whole & BITS) << (32 / (int)UNIT * u) : whole << (32 / (int)UNIT * u);
            });
            if (OF_B) add_values(sums[g], unit);
            *(ivec_anywhere*)(out + g * apart) = OF_B ? unit : unit ^ OFFSET;
        }
        out += stride;
    };
    for (long i = 0; i + UNIT <= rows; i += UNIT) put(i, std::integral_constant<int, (int)UNIT>{});
    unrolled<(int)UNIT>([&](auto left) ALWAYS {
        if (left && left == rows % UNIT) put(rows - left, left);
    });
#pragma GCC unroll 8
    for (int g = 0; g < G; g++) {
        store((float*)out + g * apart, sizes[g].of_columns() * (1.0f / MOST));
        if (OF_B && OFFSET) *(ivec_anywhere*)(out + NR + g * apart) = sums[g] * -128;
    }
}

// One tile of R rows and NR columns over `units`, as tile_of; the scales are those of its rows and columns.
template <int R, class Use, class Ahead>
INLINE void unit_tile_of(long units, const int32_t* A, long ra, long ka, const float* row_scales, const int32_t* B,
                         const float* column_scales, Use&& use, Ahead&& ahead) {
    const vec left = load(column_scales), right = load(column_scales + W);
    const auto scaled = [&](int r, ivec x, ivec y) ALWAYS {
        const float scale = row_scales[r];
        use(r, __builtin_convertvector(x, vec) * left * scale, __builtin_convertvector(y, vec) * right * scale);
    };
    tile_of<R, STEPS>(units, A, ra, ka, B, beginning(column_scales), beginning(column_scales + W), scaled, ahead);
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
    INLINE void product_into(float* out, long ld, long rows, long depth, const float* B) const {
        product(0, rows, depth, B, Into{false, out, ld}, Nothing{});
    }
};

// W rows of a weight, `depth` values each, as columns of B.
INLINE void pack_weight(const float* from, long depth, float* out) {
    int32_t units[DEPTH / UNIT], sum;
    for (long k0 = 0, block = block_of(depth); k0 < depth; k0 += block)
        for (long r = 0, count = min_of(block, depth - k0); r < W; r++) {
            float* ends = out + (k0 + count / UNIT) * NR + r;
            *ends = units_of_values(from + r * depth + k0, count, units, sum);
            if (OFFSET) *(int32_t*)(ends + NR) = -128 * sum;
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
// MR columns of dy with NR of x: sums over the positions.
template <class Use, class Ahead>
INLINE void gradient_tile(long count, long rows, const float* dy, const float* x, Use&& use, Ahead&& ahead, bool, float*, long) {
    const long units = ceil_div(rows, UNIT);
    unit_tile(count, units, (const int32_t*)dy, 1, MR, dy + units * MR, (const int32_t*)x, x + units * NR, use, ahead);
}
