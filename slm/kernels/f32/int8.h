// Products in integers of 8 bits, for AVX512-VNNI and AVX-VNNI: they multiply four of them, and add, twice as fast as
// pairs of 16 bits.
//
// Each row of A, and each column of B, becomes integers by a scale of its own: the largest of the values that one sum goes
// over is MOST. A layer's values have some seven bits so, as many as bf16. Not for values of which many small ones matter
// beside a large one, as probabilities do: a word less likely than one in 254 would count for nothing.
//
// The instruction takes its first factor without a sign. A has 128 more than its integers therefore, and a sum begins with
// what that is too much: -128 times the sum of B's column. A value that is not finite makes its scale NaN, and with it
// every result.
#pragma once
#include "integers.h"

static_assert(W == 8 || W == 16, "these products are written for AVX-VNNI and AVX512-VNNI");

constexpr long UNIT = 4;  // values in 32 bits
constexpr float MOST = 127.0f;
constexpr int32_t HIGH = (int32_t)0x80808080;  // 128 more for each of four

// For each width: W whole numbers as integers of 8 bits, in their order; sum + the four a (no sign) times four b each; the
// sum of all lanes.
#if SLM_LANES == 16

INLINE void store_quads(int32_t* p, ivec x) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)x)); }
INLINE ivec multiply_add(ivec sum, ivec a, ivec b) { return (ivec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b); }

#else

INLINE void store_quads(int32_t* p, ivec x) {
    const __m256i words = _mm256_packs_epi32((__m256i)x, (__m256i)x), bytes = _mm256_packs_epi16(words, words);
    p[0] = _mm256_extract_epi32(bytes, 0);
    p[1] = _mm256_extract_epi32(bytes, 4);
}
INLINE ivec multiply_add(ivec sum, ivec a, ivec b) {
    return (ivec)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
}

#endif

INLINE int32_t sum_of(ivec x) {
    return ((ivec)folded((vec)x, [](vec a, vec b) ALWAYS { return (vec)((ivec)a + (ivec)b); }))[0];
}

// The largest size of values that are taken one after the other, or NaN where one is not finite.
struct Largest {
    vec size = {}, nothing = {};

    INLINE void take(vec x) {
        size = max_of(size, (vec)((ivec)x & 0x7fffffff));
        nothing += x * 0.0f;
    }
    INLINE vec found() const { return size + nothing; }
};

constexpr long STEPS = 8;  // units of a tile between two calls of `ahead`: as many values as with pairs

// What sums of W columns begin with: it follows the scales of a block's NR columns.
INLINE ivec beginning(const float* column_scales) { return load((const int32_t*)column_scales + NR); }
INLINE void multiply_add(ivec& c0, ivec& c1, const int32_t& a, ivec b0, ivec b1) {
    const ivec both = all(a);
    c0 = multiply_add(c0, both, b0);
    c1 = multiply_add(c1, both, b1);
}

// A row of `depth` values (a multiple of 2 W) as quads with signs. Returns the scale that brings products back; `begin`: what
// a sum with it as a column begins with.
INLINE float signed_row(const float* from, long depth, int32_t* out, int32_t& begin) {
    Largest a, b;
    for (long k = 0; k < depth; k += 2 * W) {
        a.take(load(from + k));
        b.take(load(from + k + W));
    }
    const float top = max_lane(max_of(a.size, b.size)) + sum_of(a.nothing + b.nothing), scale = top > 0 ? MOST / top : 0.0f;
    ivec sum = {};
    for (long k = 0; k < depth; k += W) {
        const ivec whole = rounded(load(from + k) * scale);
        sum += whole;
        store_quads(out + k / UNIT, whole);
    }
    begin = -128 * sum_of(sum);
    return top * (1.0f / MOST);
}

// A row of A; returns its scale.
INLINE float units_of_row(const float* from, long depth, int32_t* out) {
    int32_t begin;
    const float scale = signed_row(from, depth, out, begin);
    for (long i = 0; i < depth / UNIT; i++) out[i] ^= HIGH;
    return scale;
}

// A row of a weight as a column of B: `units` gets its quads, `ends` and the place NR after it what follows them.
INLINE void units_of_column(const float* from, long depth, int32_t* units, float* ends) {
    ends[0] = signed_row(from, depth, units, *(int32_t*)(ends + NR));
}

// `rows` rows of G times W columns, the W of group g in row i at(i, g), as quads of rows: out[g * apart + i / 4 * stride +
// column] and, at the end of each group, its columns' scales. OF_B: columns of B, whose beginnings follow; else rows of A.
template <int G, bool OF_B, class At> INLINE void units_of_columns(long rows, At&& at, int32_t* out, long stride, long apart) {
    Largest top[G];
    vec to[G];
    ivec sums[G];
    for (long i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int g = 0; g < G; g++) top[g].take(at(i, g));
#pragma GCC unroll 8
    for (int g = 0; g < G; g++) {
        const vec most = top[g].found();
        to[g] = choose(most > 0.0f, MOST / most, vec{});
        sums[g] = ivec{};
    }
    const ivec ones = all((int32_t)0x01010101), high = all(HIGH);
    auto put = [&](int g, vec a, vec b, vec c, vec d) ALWAYS {
        const ivec quad = (rounded(a * to[g]) & 255) | ((rounded(b * to[g]) & 255) << 8) | ((rounded(c * to[g]) & 255) << 16) |
                          (rounded(d * to[g]) << 24);
        if (OF_B) sums[g] = multiply_add(sums[g], ones, quad);
        *(ivec_anywhere*)(out + g * apart) = OF_B ? quad : quad ^ high;
    };
    for (long i = 0; i + 3 < rows; i += 4, out += stride)
#pragma GCC unroll 8
        for (int g = 0; g < G; g++) put(g, at(i, g), at(i + 1, g), at(i + 2, g), at(i + 3, g));
    if (const long left = rows % 4) {
        const long i = rows - left;
#pragma GCC unroll 8
        for (int g = 0; g < G; g++)
            put(g, at(i, g), left > 1 ? at(i + 1, g) : vec{}, left > 2 ? at(i + 2, g) : vec{}, vec{});
        out += stride;
    }
#pragma GCC unroll 8
    for (int g = 0; g < G; g++) {
        store((float*)out + g * apart, top[g].found() * (1.0f / MOST));
        if (OF_B) *(ivec_anywhere*)(out + NR + g * apart) = sums[g] * -128;
    }
}
