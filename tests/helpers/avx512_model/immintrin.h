// The AVX-512 instructions that slm/kernels uses, as plain C++ over GCC's vector extensions: a model of their results, so
// that the kernels in bf16 and in integers are tested on processors that lack them. Put this folder before the compiler's
// own headers (-I).
//
// Results are those of Intel's manual with two exceptions: vdpbf16ps does not flush denormal numbers, and vrcp14ps is
// exact instead of an estimate (the kernels refine it to f32 precision in either case).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define MODEL static inline __attribute__((always_inline))

typedef float __m512 __attribute__((vector_size(64)));
typedef long long __m512i __attribute__((vector_size(64)));
typedef short __m512bh __attribute__((vector_size(64)));
typedef long long __m256i __attribute__((vector_size(32)));
typedef short __m256bh __attribute__((vector_size(32)));
typedef long long __m128i __attribute__((vector_size(16)));
typedef float __m128 __attribute__((vector_size(16)));
typedef uint16_t __mmask16;

namespace model {
typedef int32_t lanes32 __attribute__((vector_size(64)));
typedef uint32_t words __attribute__((vector_size(64)));
typedef uint16_t halves32 __attribute__((vector_size(64)));
typedef uint16_t halves16 __attribute__((vector_size(32)));

template <class T>
MODEL T read(const void* p) {
    T x;
    memcpy(&x, p, sizeof x);
    return x;
}
template <class T>
MODEL void write(void* p, T x) {
    memcpy(p, &x, sizeof x);
}
MODEL uint32_t bits(float x) { return read<uint32_t>(&x); }
MODEL float number(uint32_t x) { return read<float>(&x); }

MODEL float of_f16(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
    if (exponent == 31) return number(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f;
    return number(sign | (exponent + 112) << 23 | fraction << 13);
}
// f32 to f16, to nearest even.
MODEL uint16_t f16_of(float x) {
    const uint16_t sign = (uint16_t)(bits(x) >> 16 & 0x8000);
    const float size = std::fabs(x);
    if (x != x) return sign | 0x7e00;
    if (size >= 65520.0f) return sign | 0x7c00;
    if (size < 0x1p-14f) return sign | (uint16_t)std::nearbyint(size * 0x1p24f);
    const uint32_t b = bits(size), rounded = b + 0xfff + (b >> 13 & 1);
    return sign | (uint16_t)((rounded >> 13) - (112 << 10));
}
}  // namespace model

#define _MM_HINT_T0 3
#define _MM_HINT_T1 2
MODEL void _mm_prefetch(const char*, int) {}

// Memory.
MODEL __m512 _mm512_loadu_ps(const void* p) { return model::read<__m512>(p); }
MODEL __m512 _mm512_load_ps(const void* p) { return *(const __m512*)p; }  // aligned, or it faults as the instruction does
MODEL void _mm512_storeu_ps(void* p, __m512 x) { model::write(p, x); }
MODEL void _mm512_store_ps(void* p, __m512 x) { *(__m512*)p = x; }
MODEL __m512i _mm512_loadu_si512(const void* p) { return model::read<__m512i>(p); }
MODEL void _mm512_storeu_si512(void* p, __m512i x) { model::write(p, x); }
MODEL __m256i _mm256_loadu_si256(const __m256i* p) { return model::read<__m256i>(p); }
MODEL void _mm256_storeu_si256(__m256i* p, __m256i x) { model::write(p, x); }

// Constants.
MODEL __m512 _mm512_setzero_ps() { return __m512{}; }
MODEL __m512i _mm512_setzero_si512() { return __m512i{}; }
MODEL __m512 _mm512_set1_ps(float x) { return x - __m512{}; }
MODEL __m512i _mm512_set1_epi32(int x) { return (__m512i)(x - model::lanes32{}); }
MODEL __m512i _mm512_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l, int m,
                                 int n, int o, int p) {
    return (__m512i)model::lanes32{a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p};
}

MODEL __m512i _mm512_setr_epi64(long long a, long long b, long long c, long long d, long long e, long long f, long long g,
                                long long h) {
    return __m512i{a, b, c, d, e, f, g, h};
}

// f32 arithmetic.
MODEL __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
MODEL __m512 _mm512_sub_ps(__m512 a, __m512 b) { return a - b; }
MODEL __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
MODEL __m512 _mm512_max_ps(__m512 a, __m512 b) { return a > b ? a : b; }
MODEL __m512 _mm512_min_ps(__m512 a, __m512 b) { return a < b ? a : b; }
// One rounding where the compiler may fuse (-ffp-contract=fast and a processor with FMA), two elsewhere.
MODEL __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) { return a * b + c; }
MODEL __m512 _mm512_fmsub_ps(__m512 a, __m512 b, __m512 c) { return a * b - c; }
MODEL __m512 _mm512_fnmadd_ps(__m512 a, __m512 b, __m512 c) { return c - a * b; }
MODEL __m512 _mm512_sqrt_ps(__m512 x) {
    for (int i = 0; i < 16; i++) x[i] = std::sqrt(x[i]);
    return x;
}
MODEL __m512 _mm512_rcp14_ps(__m512 x) { return 1.0f / x; }
MODEL __m512 _mm512_roundscale_ps(__m512 x, int mode) {
    if (mode != 0x08) __builtin_trap();  // to nearest even, without exceptions: the only mode that is modelled
    const __m512 magic = _mm512_set1_ps(12582912.0f);  // 1.5 * 2^23: no fraction fits beside it
    return _mm512_max_ps(x, -x) < 4194304.0f ? (x + magic) - magic : x;
}
// x times 2^power for whole powers in two factors, so that results may be denormal.
MODEL __m512 _mm512_scalef_ps(__m512 x, __m512 power) {
    const __m512 n = _mm512_max_ps(_mm512_min_ps(power, _mm512_set1_ps(252.0f)), _mm512_set1_ps(-252.0f));
    const model::lanes32 whole = __builtin_convertvector(n, model::lanes32), half = whole / 2, rest = whole - half;
    return x * (__m512)((half + 127) << 23) * (__m512)((rest + 127) << 23);
}
// By halves, as GCC's own sequence does.
MODEL float _mm512_reduce_add_ps(__m512 x) {
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}
MODEL float _mm512_reduce_max_ps(__m512 x) {
    for (int i = 1; i < 16; i++) x[0] = x[0] > x[i] ? x[0] : x[i];
    return x[0];
}

// Integers and masks.
MODEL __m512i _mm512_add_epi32(__m512i a, __m512i b) { return (__m512i)((model::words)a + (model::words)b); }
MODEL __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
MODEL __m512i _mm512_slli_epi32(__m512i a, unsigned n) { return (__m512i)((model::words)a << n); }
MODEL __mmask16 model_mask(model::lanes32 x) {
    unsigned mask = 0;
    for (int i = 0; i < 16; i++) mask |= (unsigned)(x[i] != 0) << i;
    return (__mmask16)mask;
}
MODEL __mmask16 _mm512_cmpge_epi32_mask(__m512i a, __m512i b) { return model_mask((model::lanes32)a >= (model::lanes32)b); }
MODEL __mmask16 _mm512_cmplt_epi32_mask(__m512i a, __m512i b) { return model_mask((model::lanes32)a < (model::lanes32)b); }
MODEL __mmask16 _mm512_mask_cmple_epi32_mask(__mmask16 k, __m512i a, __m512i b) {
    return k & model_mask((model::lanes32)a <= (model::lanes32)b);
}
#define _CMP_NLT_UQ 0x15
MODEL __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int kind) {
    if (kind != _CMP_NLT_UQ) __builtin_trap();  // not less than, or not a number: the only comparison that is modelled
    return (__mmask16)~model_mask(a < b);
}
MODEL __m512i _mm512_maskz_loadu_epi32(__mmask16 k, const void* p) {
    model::lanes32 x = {};
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) x[i] = model::read<int32_t>((const char*)p + 4 * i);
    return (__m512i)x;
}
MODEL __m512 _mm512_maskz_loadu_ps(__mmask16 k, const void* p) { return (__m512)_mm512_maskz_loadu_epi32(k, p); }
MODEL __m512 _mm512_maskz_mov_ps(__mmask16 k, __m512 x) {
    for (int i = 0; i < 16; i++)
        if (!(k >> i & 1)) x[i] = 0.0f;
    return x;
}
MODEL __m512 _mm512_maskz_scalef_ps(__mmask16 k, __m512 x, __m512 power) {
    return _mm512_maskz_mov_ps(k, _mm512_scalef_ps(x, power));
}

// Casts and conversions.
MODEL __m512 _mm512_castsi512_ps(__m512i x) { return (__m512)x; }
// To nearest even; what is no number, or beyond 32 bits, becomes the least of them.
MODEL __m512i _mm512_cvtps_epi32(__m512 x) {
    model::lanes32 out;
    for (int i = 0; i < 16; i++) out[i] = std::fabs(x[i]) < 0x1p31f ? (int32_t)std::nearbyint(x[i]) : INT32_MIN;
    return (__m512i)out;
}
MODEL __m256i _mm512_castsi512_si256(__m512i x) { return model::read<__m256i>(&x); }
MODEL __m256i _mm512_extracti64x4_epi64(__m512i x, int half) { return model::read<__m256i>((const char*)&x + 32 * half); }
MODEL __m128i _mm512_cvtepi32_epi8(__m512i x) {
    const model::lanes32 from = (model::lanes32)x;
    signed char to[16];
    for (int i = 0; i < 16; i++) to[i] = (signed char)from[i];
    return model::read<__m128i>(to);
}
MODEL void _mm_storeu_si128(__m128i* p, __m128i x) { model::write(p, x); }
MODEL __m512i _mm512_cvtepu16_epi32(__m256i x) {
    return (__m512i)__builtin_convertvector((model::halves16)x, model::words);
}
// f32 to bf16, to nearest even.
MODEL __m256bh _mm512_cvtneps_pbh(__m512 x) {
    const model::words b = (model::words)x, rounded = (b + 0x7fff + (b >> 16 & 1)) >> 16, nan = b >> 16 | 0x40;
    return (__m256bh)__builtin_convertvector(x != x ? nan : rounded, model::halves16);
}
MODEL __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
    const __m256bh parts[2] = {_mm512_cvtneps_pbh(low), _mm512_cvtneps_pbh(high)};
    return model::read<__m512bh>(parts);
}
MODEL __m512 _mm512_cvtph_ps(__m256i x) {
    const model::halves16 h = (model::halves16)x;
    __m512 out;
    for (int i = 0; i < 16; i++) out[i] = model::of_f16(h[i]);
    return out;
}
MODEL __m256i _mm512_cvtps_ph(__m512 x, int mode) {
    if (mode != 0) __builtin_trap();  // to nearest even: the only mode that is modelled
    model::halves16 out;
    for (int i = 0; i < 16; i++) out[i] = model::f16_of(x[i]);
    return (__m256i)out;
}
MODEL __m128i _mm_cvtsi32_si128(int x) { return __m128i{(long long)(unsigned)x, 0}; }
MODEL __m128 _mm_cvtph_ps(__m128i x) {
    __m128 out;
    for (int i = 0; i < 4; i++) out[i] = model::of_f16((uint16_t)(x[0] >> 16 * i));
    return out;
}
MODEL float _mm_cvtss_f32(__m128 x) { return x[0]; }

// Shuffles within lanes of 128 bits, and of such lanes.
MODEL __m512i _mm512_unpacklo_epi32(__m512i a, __m512i b) {
    const model::words x = (model::words)a, y = (model::words)b;
    model::words out;
    for (int i = 0; i < 16; i += 4) {
        out[i] = x[i], out[i + 1] = y[i];
        out[i + 2] = x[i + 1], out[i + 3] = y[i + 1];
    }
    return (__m512i)out;
}
MODEL __m512i _mm512_unpackhi_epi32(__m512i a, __m512i b) {
    const model::words x = (model::words)a, y = (model::words)b;
    model::words out;
    for (int i = 0; i < 16; i += 4) {
        out[i] = x[i + 2], out[i + 1] = y[i + 2];
        out[i + 2] = x[i + 3], out[i + 3] = y[i + 3];
    }
    return (__m512i)out;
}
MODEL __m512i _mm512_unpacklo_epi64(__m512i a, __m512i b) {
    __m512i out;
    for (int i = 0; i < 8; i += 2) out[i] = a[i], out[i + 1] = b[i];
    return out;
}
MODEL __m512i _mm512_unpackhi_epi64(__m512i a, __m512i b) {
    __m512i out;
    for (int i = 0; i < 8; i += 2) out[i] = a[i + 1], out[i + 1] = b[i + 1];
    return out;
}
MODEL __m512i _mm512_permutexvar_epi64(__m512i order, __m512i x) {
    __m512i out;
    for (int i = 0; i < 8; i++) out[i] = x[order[i] & 7];
    return out;
}
// 32 bits to 16, with the nearest of those that fit: four of a, then four of b, in each lane of 128 bits.
MODEL __m512i _mm512_packs_epi32(__m512i a, __m512i b) {
    const model::lanes32 parts[2] = {(model::lanes32)a, (model::lanes32)b};
    model::halves32 out;
    for (int i = 0; i < 32; i++) {
        const int32_t x = parts[i >> 2 & 1][(i >> 3 << 2) + (i & 3)];
        out[i] = (uint16_t)(x > INT16_MAX ? INT16_MAX : x < INT16_MIN ? INT16_MIN : x);
    }
    return (__m512i)out;
}
MODEL __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int order) {
    __m512i out;
    for (int lane = 0; lane < 4; lane++) {
        const __m512i& from = lane < 2 ? a : b;
        const int at = order >> 2 * lane & 3;
        out[2 * lane] = from[2 * at], out[2 * lane + 1] = from[2 * at + 1];
    }
    return out;
}

// Sums of products of pairs: first the odd, then the even ones.
MODEL __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
    const model::words x = (model::words)a, y = (model::words)b;
    const model::words upper = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                                0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                                0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
    sum += (__m512)(x & upper) * (__m512)(y & upper);
    return sum + (__m512)(x << 16) * (__m512)(y << 16);
}

// Four integers of 8 bits each, those of `a` without a sign, added to 32 bits.
MODEL __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
    const model::lanes32 x = (model::lanes32)a, y = (model::lanes32)b;
    model::lanes32 products = {};
    for (int i = 0; i < 4; i++) products += (x >> 8 * i & 255) * ((model::lanes32)((model::words)y << (24 - 8 * i)) >> 24);
    return (__m512i)((model::words)sum + (model::words)products);
}

// The same of pairs of 16-bit integers, added to 32 bits.
MODEL __m512i _mm512_dpwssd_epi32(__m512i sum, __m512i a, __m512i b) {
    const model::lanes32 x = (model::lanes32)a, y = (model::lanes32)b;
    const auto low = [](model::lanes32 each) { return (model::lanes32)((model::words)each << 16) >> 16; };
    const model::words lower = (model::words)(low(x) * low(y)), upper = (model::words)((x >> 16) * (y >> 16));
    return (__m512i)((model::words)sum + lower + upper);
}
