// f32 vectors of W lanes in GCC's and clang's vector extensions: the same source serves AVX2 (8 lanes), AVX-512F (16) and,
// with 4 lanes, NEON and anything else. Products and sums that stand in one expression become fused multiply-adds
// (-ffp-contract=fast). What compilers make badly of the extensions for NEON is written with its own instructions.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "../whole.h"

#ifndef SLM_LANES
#if defined(__AVX512F__)
#define SLM_LANES 16
#elif defined(__AVX__)
#define SLM_LANES 8
#else
#define SLM_LANES 4
#endif
#endif

#if defined(__aarch64__) && SLM_LANES == 4
#define SLM_NEON
#include <arm_neon.h>
#endif
#if defined(__AVX512F__) || defined(SLM_INTEGERS)
#include <immintrin.h>
#endif

constexpr long W = SLM_LANES;   // lanes of a vector

typedef float vec __attribute__((vector_size(4 * SLM_LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * SLM_LANES)));
typedef float vec_anywhere __attribute__((vector_size(4 * SLM_LANES), aligned(4), may_alias));
typedef int32_t ivec_anywhere __attribute__((vector_size(4 * SLM_LANES), aligned(4), may_alias));

// each(0) to each(N - 1), with indices that are constants before the compiler chooses what to keep in registers: it leaves
// sums in memory that are indexed in a loop, even one that it unrolls.
template <class Each, int... I> INLINE void unrolled(std::integer_sequence<int, I...>, Each&& each) {
    (each(std::integral_constant<int, I>{}), ...);
}
template <int N, class Each> INLINE void unrolled(Each&& each) { unrolled(std::make_integer_sequence<int, N>{}, each); }

INLINE vec load(const float* p) { return *(const vec_anywhere*)p; }
INLINE ivec load(const int32_t* p) { return *(const ivec_anywhere*)p; }
INLINE void store(float* p, vec x) { *(vec_anywhere*)p = x; }
INLINE vec all(float x) { return x - vec{}; }
INLINE ivec all(int32_t x) { return x - ivec{}; }
INLINE vec choose(ivec mask, vec yes, vec no) { return mask ? yes : no; }
INLINE vec root(vec x) {
#if defined(SLM_NEON)
    return vsqrtq_f32(x);
#elif defined(__AVX512F__) && SLM_LANES == 16
    return _mm512_sqrt_ps(x);
#elif defined(__AVX__) && SLM_LANES == 8
    return __builtin_ia32_sqrtps256(x);
#else
    for (long i = 0; i < W; i++) x[i] = std::sqrt(x[i]);
    return x;
#endif
}

// Lane l of the result is lane I_l of a, or lane I_l - W of b.
template <int... I> INLINE vec shuffled(vec a, vec b) {
#ifdef __clang__
    return __builtin_shufflevector(a, b, I...);
#else
    return __builtin_shuffle(a, b, ivec{I...});
#endif
}

#ifdef SLM_NEON

INLINE vec max_of(vec a, vec b) { return vmaxq_f32(a, b); }
INLINE vec min_of(vec a, vec b) { return vminq_f32(a, b); }

// sum + x * y. The product takes y from a lane, so that loading y needs no vector instruction.
INLINE vec multiply_add(vec sum, vec x, float y) { return vfmaq_n_f32(sum, x, y); }

// Sum and maximum of the lanes; the sum by halves.
INLINE float sum_of(vec x) { return vpadds_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x))); }
INLINE float max_lane(vec x) { return vmaxvq_f32(x); }

#else

INLINE vec max_of(vec a, vec b) { return a > b ? a : b; }
INLINE vec min_of(vec a, vec b) { return a < b ? a : b; }
INLINE vec multiply_add(vec sum, vec x, float y) { return sum + all(y) * x; }

// each(x, the lanes of x that stand half a vector on), then a quarter on, and so forth: the first lane ends with what all of
// them come to, by halves.
template <int HALF, class Each, int... L> INLINE void fold(vec& x, Each&& each, std::integer_sequence<int, L...> lanes) {
    x = each(x, shuffled<(L + HALF) % W...>(x, x));
    if constexpr (HALF > 1) fold<HALF / 2>(x, each, lanes);
}
template <class Each> INLINE vec folded(vec x, Each&& each) {
    fold<W / 2>(x, each, std::make_integer_sequence<int, (int)W>{});
    return x;
}

// Sum and maximum of the lanes.
INLINE float sum_of(vec x) {
    return folded(x, [](vec a, vec b) ALWAYS { return a + b; })[0];
}
INLINE float max_lane(vec x) {
    return folded(x, [](vec a, vec b) ALWAYS { return max_of(a, b); })[0];
}

#endif

// Rows i and i + H of a W x W block trade the values that stand H columns off their side of the diagonal, for each i whose
// bit H is zero. One call for each power of two below W transposes the block.
template <int H, int... L> INLINE void trade(vec* rows, std::integer_sequence<int, L...>) {
    unrolled<W>([&](auto i) ALWAYS {
        if constexpr (!(i & H)) {
            const vec a = rows[i], b = rows[i + H];
            rows[i] = shuffled<(L & H ? W + L - H : L)...>(a, b);
            rows[i + H] = shuffled<(L & H ? W + L : L + H)...>(a, b);
        }
    });
}
template <int H = 1> INLINE void transpose(vec* rows) {
    trade<H>(rows, std::make_integer_sequence<int, (int)W>{});
    if constexpr (2 * H < W) transpose<2 * H>(rows);
}

// Up to `columns` rows (row i at from + i * ld, `depth` values) as columns: out[k * stride + i] = from[i][k]; missing rows
// are zero. Whole vectors of both.
INLINE void pack_columns(const float* from, long ld, long rows, long columns, long depth, float* out, long stride) {
    for (long k = 0; k < depth; k += W)
        for (long i = 0; i < columns; i += W) {
            vec block[W];
            unrolled<W>([&](auto r) ALWAYS { block[r] = i + r < rows ? load(from + (i + r) * ld + k) : vec{}; });
            transpose(block);
            unrolled<W>([&](auto r) ALWAYS { store(out + (k + r) * stride + i, block[r]); });
        }
}

// What bodies for all number formats call these vectors (family.h).
using lanes = vec;
constexpr long LANES = W;
INLINE lanes load_f32(const float* p) { return load(p); }
INLINE void store_f32(float* p, lanes x) { store(p, x); }
