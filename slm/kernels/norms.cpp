// RMSNorm and the embedding, forward and backward.
#include "family.h"

extern "C" {

// out = x / rms(x) * weight for rows of d values; inverse_rms [m] where given.
void slm_rmsnorm(const value* x, long m, long d, const float* weight, float eps, value* out, float* inverse_rms) {
#pragma omp parallel for schedule(static)
    for (long row = 0; row < m; row++) {
        const value* v = x + row * d;
        lanes sum = {};
        for (long i = 0; i < d; i += LANES) sum += load_value(v + i) * load_value(v + i);
        const float r = 1.0f / std::sqrt(sum_of(sum) / d + eps);
        if (inverse_rms) inverse_rms[row] = r;
        for (long i = 0; i < d; i += LANES) store_value(out + row * d + i, load_value(v + i) * r * load_f32(weight + i));
    }
}

// dx = residual + gradient through the norm; d_weight [d] is stored (add = 0) or added to. residual may be null or dx
// itself. partial: scratch [NORM_PARTS, d].
void slm_rmsnorm_backward(const value* dh, const value* x, const float* inverse_rms, const float* weight, long m, long d,
                          const value* residual, value* dx, float* d_weight, int add, float* partial) {
    const long rows = ceil_div(m, NORM_PARTS);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (long part = 0; part < NORM_PARTS; part++) {
            float* sums = partial + part * d;
            memset(sums, 0, d * sizeof(float));
            for (long row = part * rows; row < min_of(m, (part + 1) * rows); row++) {
                const value *g = dh + row * d, *v = x + row * d;
                const float r = inverse_rms[row];
                lanes dot = {};
                for (long i = 0; i < d; i += LANES) {
                    const lanes gv = load_value(g + i) * load_value(v + i);
                    dot += gv * load_f32(weight + i);
                    store_f32(sums + i, gv * r + load_f32(sums + i));
                }
                const float k = sum_of(dot) * r * r * r / d;
                for (long i = 0; i < d; i += LANES) {
                    lanes y = load_value(g + i) * load_f32(weight + i) * r - load_value(v + i) * k;
                    if (residual) y += load_value(residual + row * d + i);
                    store_value(dx + row * d + i, y);
                }
            }
        }
#pragma omp for schedule(static)
        for (long i = 0; i < d; i += LANES) {
            lanes sum = add ? load_f32(d_weight + i) : lanes{};
            for (long part = 0; part < NORM_PARTS; part++) sum += load_f32(partial + part * d + i);
            store_f32(d_weight + i, sum);
        }
    }
}

// Rows of the f32 table [v, d].
void slm_embed(const float* table, const int64_t* ids, long m, long d, value* out) {
#pragma omp parallel for schedule(static)
    for (long row = 0; row < m; row++)
        for (long i = 0; i < d; i += NR)
            store_values(out + row * d + i, load_f32(table + ids[row] * d + i), load_f32(table + ids[row] * d + i + LANES));
}

// grad[ids[row]] += dx[row], rows in order; threads share the columns.
void slm_embed_backward(const value* dx, const int64_t* ids, long m, long d, float* grad) {
#pragma omp parallel for schedule(static)
    for (long i = 0; i < d; i += NR)
        for (long row = 0; row < m; row++) {
            float* g = grad + ids[row] * d + i;
            store_f32(g, load_f32(g) + load_value(dx + row * d + i));
            store_f32(g + LANES, load_f32(g + LANES) + load_value(dx + row * d + i + LANES));
        }
}

}  // extern "C"
