// RMSNorm and the embedding in f32, forward and backward.
#include "gemm.h"

extern "C" {

// out = x / rms(x) * weight for rows of d values; inverse_rms [m] where given.
void slm_rmsnorm(const float* x, long m, long d, const float* weight, float eps, float* out, float* inverse_rms) {
#pragma omp parallel for schedule(static)
    for (long row = 0; row < m; row++) {
        const float* v = x + row * d;
        vec sum = {};
        for (long i = 0; i < d; i += W) sum += load(v + i) * load(v + i);
        const float r = 1.0f / std::sqrt(sum_of(sum) / d + eps);
        if (inverse_rms) inverse_rms[row] = r;
        for (long i = 0; i < d; i += W) store(out + row * d + i, load(v + i) * r * load(weight + i));
    }
}

// dx = residual + gradient through the norm; d_weight [d] is stored (add = 0) or added to. residual may be null or dx
// itself. partial: scratch [NORM_PARTS, d].
void slm_rmsnorm_backward(const float* dh, const float* x, const float* inverse_rms, const float* weight, long m, long d,
                          const float* residual, float* dx, float* d_weight, int add, float* partial) {
    const long rows = ceil_div(m, NORM_PARTS);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (long part = 0; part < NORM_PARTS; part++) {
            float* sums = partial + part * d;
            memset(sums, 0, d * sizeof(float));
            for (long row = part * rows; row < min_of(m, (part + 1) * rows); row++) {
                const float *g = dh + row * d, *v = x + row * d;
                const float r = inverse_rms[row];
                vec dot = {};
                for (long i = 0; i < d; i += W) {
                    const vec gv = load(g + i) * load(v + i);
                    dot += gv * load(weight + i);
                    store(sums + i, gv * r + load(sums + i));
                }
                const float k = sum_of(dot) * r * r * r / d;
                for (long i = 0; i < d; i += W) {
                    vec y = load(g + i) * load(weight + i) * r - load(v + i) * k;
                    if (residual) y += load(residual + row * d + i);
                    store(dx + row * d + i, y);
                }
            }
        }
#pragma omp for schedule(static)
        for (long i = 0; i < d; i += W) {
            vec sum = add ? load(d_weight + i) : vec{};
            for (long part = 0; part < NORM_PARTS; part++) sum += load(partial + part * d + i);
            store(d_weight + i, sum);
        }
    }
}

// Rows of the table [v, d].
void slm_embed(const float* table, const int64_t* ids, long m, long d, float* out) {
#pragma omp parallel for schedule(static)
    for (long row = 0; row < m; row++) memcpy(out + row * d, table + ids[row] * d, d * sizeof(float));
}

// grad[ids[row]] += dx[row], rows in order; threads share the columns.
void slm_embed_backward(const float* dx, const int64_t* ids, long m, long d, float* grad) {
#pragma omp parallel for schedule(static)
    for (long i = 0; i < d; i += NR)
        for (long row = 0; row < m; row++) {
            float* g = grad + ids[row] * d + i;
            store(g, load(g) + load(dx + row * d + i));
            store(g + W, load(g + W) + load(dx + row * d + i + W));
        }
}

}  // extern "C"
