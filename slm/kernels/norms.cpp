// RMSNorm and the embedding, forward and backward.
#include <omp.h>

#include "simd.h"

extern "C" {

// out = x / rms(x) * weight for rows of d values; inverse_rms [m] where given.
void slm_rmsnorm(const bf16* x, long m, long d, const float* weight, float eps, bf16* out, float* inverse_rms) {
#pragma omp parallel for schedule(static)
    for (long row = 0; row < m; row++) {
        const bf16* v = x + row * d;
        __m512 sum = _mm512_setzero_ps();
        for (long i = 0; i < d; i += 16) sum = _mm512_fmadd_ps(load_bf16(v + i), load_bf16(v + i), sum);
        const float r = 1.0f / std::sqrt(_mm512_reduce_add_ps(sum) / d + eps);
        if (inverse_rms) inverse_rms[row] = r;
        const __m512 r16 = _mm512_set1_ps(r);
        for (long i = 0; i < d; i += 16)
            store_bf16(out + row * d + i, _mm512_mul_ps(_mm512_mul_ps(load_bf16(v + i), r16), _mm512_loadu_ps(weight + i)));
    }
}

// dx = residual + gradient through the norm; d_weight [d] is stored (add = 0) or added to. residual may be null or dx
// itself. partial: f32 scratch [NORM_PARTS, d] (slm_rmsnorm_backward_scratch).
void slm_rmsnorm_backward(const bf16* dh, const bf16* x, const float* inverse_rms, const float* weight, long m, long d,
                          const bf16* residual, bf16* dx, float* d_weight, int add, float* partial) {
    const long rows = ceil_div(m, NORM_PARTS);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (long part = 0; part < NORM_PARTS; part++) {
            float* sums = partial + part * d;
            memset(sums, 0, d * sizeof(float));
            for (long row = part * rows; row < min_of(m, (part + 1) * rows); row++) {
                const bf16 *g = dh + row * d, *v = x + row * d;
                const float r = inverse_rms[row];
                const __m512 r16 = _mm512_set1_ps(r);
                __m512 dot = _mm512_setzero_ps();
                for (long i = 0; i < d; i += 16) {
                    const __m512 gv = _mm512_mul_ps(load_bf16(g + i), load_bf16(v + i));
                    dot = _mm512_fmadd_ps(gv, _mm512_loadu_ps(weight + i), dot);
                    _mm512_storeu_ps(sums + i, _mm512_fmadd_ps(gv, r16, _mm512_loadu_ps(sums + i)));
                }
                const __m512 k = _mm512_set1_ps(_mm512_reduce_add_ps(dot) * r * r * r / d);
                for (long i = 0; i < d; i += 16) {
                    __m512 y = _mm512_mul_ps(_mm512_mul_ps(load_bf16(g + i), _mm512_loadu_ps(weight + i)), r16);
                    y = _mm512_fnmadd_ps(load_bf16(v + i), k, y);
                    if (residual) y = _mm512_add_ps(y, load_bf16(residual + row * d + i));
                    store_bf16(dx + row * d + i, y);
                }
            }
        }
#pragma omp for schedule(static)
        for (long i = 0; i < d; i += 16) {
            __m512 sum = add ? _mm512_loadu_ps(d_weight + i) : _mm512_setzero_ps();
            for (long part = 0; part < NORM_PARTS; part++) sum = _mm512_add_ps(sum, _mm512_loadu_ps(partial + part * d + i));
            _mm512_storeu_ps(d_weight + i, sum);
        }
    }
}

// Rows of the f32 table [v, d] as bf16.
void slm_embed(const float* table, const int64_t* ids, long m, long d, bf16* out) {
#pragma omp parallel for schedule(static)
    for (long row = 0; row < m; row++)
        for (long i = 0; i < d; i += 16) store_bf16(out + row * d + i, _mm512_loadu_ps(table + ids[row] * d + i));
}

// grad[ids[row]] += dx[row], rows in order; threads share the columns.
void slm_embed_backward(const bf16* dx, const int64_t* ids, long m, long d, float* grad) {
#pragma omp parallel for schedule(static)
    for (long i = 0; i < d; i += 16)
        for (long row = 0; row < m; row++) {
            float* g = grad + ids[row] * d + i;
            _mm512_storeu_ps(g, _mm512_add_ps(_mm512_loadu_ps(g), load_bf16(dx + row * d + i)));
        }
}

}  // extern "C"
