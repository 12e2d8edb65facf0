// The output head and its cross-entropy. Logits exist for some rows at a time, and their gradient takes their place.
#include <omp.h>

#include <limits>

#include "gemm.h"

extern "C" {

// Cross-entropy of m positions over v tokens: losses [m] = -log p(target), 0 where not scored (targets below zero).
// x [m, d] against the head B (forward packing). offsets: [v], added to every position's logits, or null. The logits are
// made as f16, LOSS_ROWS rows at a time so that they stay in the cache. keep = 1: logits [m, v] become their gradient,
// scale * (softmax - one-hot), as bf16 in place. keep = 0: every block of rows is written over the one before, and logits
// [LOSS_ROWS, v] are scratch (slm_cross_entropy_rows).
void slm_cross_entropy(const bf16* x, long m, long d, const pair_t* B, long v, const float* offsets, const int64_t* targets,
                       float scale, int keep, bf16* logits, float* losses) {
    const __m512 none = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    const auto block = [&](Share& share, long start) {
        const long n = min_of(LOSS_ROWS, m - start);
        bf16* out = logits + (keep ? start * v : 0);
        gemm_loop(share, x + start * d, d, n, B, d / 2, v / NR, [&](long row, long panel, __m512 a, __m512 b) {
            if (offsets) {
                a = _mm512_add_ps(a, _mm512_loadu_ps(offsets + panel * NR));
                b = _mm512_add_ps(b, _mm512_loadu_ps(offsets + panel * NR + 16));
            }
            __m256i* o = (__m256i*)(out + row * v + panel * NR);
            _mm256_storeu_si256(o, _mm512_cvtps_ph(a, 0));
            _mm256_storeu_si256(o + 1, _mm512_cvtps_ph(b, 0));
        }, [&](long row, long panel) ALWAYS { will_write(out + row * v + panel * NR); });
        share.each(n, [&](long r) {
            bf16* z = out + r * v;
            const long target = targets[start + r];
            auto load = [&](long i) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(z + i))); };
            if (target < 0) {
                losses[start + r] = 0;
                if (keep) memset(z, 0, v * sizeof(bf16));
                return;
            }
            __m512 top = none;
            for (long i = 0; i < v; i += 16) top = _mm512_max_ps(top, load(i));
            const float high = _mm512_reduce_max_ps(top);
            const __m512 shift = _mm512_set1_ps(high * LOG2_E), to_2 = _mm512_set1_ps(LOG2_E);
            __m512 sum = _mm512_setzero_ps();
            for (long i = 0; i < v; i += 16) sum = _mm512_add_ps(sum, exp2_512(_mm512_fmsub_ps(load(i), to_2, shift)));
            const float total = std::log(_mm512_reduce_add_ps(sum)) + high;
            losses[start + r] = total - _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(z[target])));
            if (!keep) return;
            const float hit = losses[start + r];
            const __m512 lse = _mm512_set1_ps(total * LOG2_E), factor = _mm512_set1_ps(scale);
            for (long i = 0; i < v; i += 16)
                store_bf16(z + i, _mm512_mul_ps(exp2_512(_mm512_fmsub_ps(load(i), to_2, lse)), factor));
            z[target] = to_bf16((std::exp(-hit) - 1.0f) * scale);
        });
    };
    in_parallel([&](Share& share) {
        for (long start = 0; start < m; start += LOSS_ROWS) block(share, start);
    });
}

// dx [m, d] = dlogits [m, v] W, with W packed for the backward pass; v is walked in blocks so that W's panels stay in the
// cache. sum: f32 scratch [m, d].
void slm_head_backward(const bf16* dlogits, long m, long v, const pair_t* B, long d, bf16* dx, float* sum) {
    const long block = 2048, panels = d / NR;
    const long group = max_of(1, min_of(panels, L2_BYTES / (block / 2 * NR * (long)sizeof(pair_t))));
    const long lines = ceil_div(2 * MR, min_of(block, v) / NR);  // of the sums, asked for in 16 pairs
    // A task owns its part of dx and walks the whole vocabulary.
    in_parallel([&](Share& share) {
        const TileUnit unit;
        share.each(ceil_div(panels, group), ceil_div(m, MR), STRIPS, [&](long column, long strip, long end) ALWAYS {
            const long first = column * group, last = min_of(panels, first + group);
            for (long start = 0; start < v; start += block) {
                const long n_pairs = min_of(block, v - start) / 2;
                for (long s = strip; s < end; s++) {
                    const long row = s * MR, n = min_of(MR, m - row);
                    for (long p = first; p < last; p++) {
                        const long from = (p - first) * MR / (last - first), to = (p + 1 - first) * MR / (last - first);
                        tile(n, n_pairs, (const pair_t*)(dlogits + row * v + start), v / 2, B + (p * (v / 2) + start / 2) * NR,
                             [&](int r, __m512 a, __m512 b) {
                                 float* c = sum + (row + r) * d + p * NR;
                                 if (start) {
                                     a = _mm512_add_ps(a, _mm512_loadu_ps(c));
                                     b = _mm512_add_ps(b, _mm512_loadu_ps(c + 16));
                                 }
                                 if (start + block < v) {
                                     _mm512_storeu_ps(c, a);
                                     _mm512_storeu_ps(c + 16, b);
                                 } else {
                                     store_bf16(dx + (row + r) * d + p * NR, a, b);
                                 }
                             },
                             [&](long part) ALWAYS {
                                 // The next strip's gradients come in evenly; this tile's sums while the product runs.
                                 for (long r = from; r < to; r++)
                                     prefetch_far(dlogits + (row + MR + r) * v + start + part * 32);
                                 for (long i = part * lines; i < min_of(2 * MR, (part + 1) * lines); i++)
                                     will_write(sum + (row + i / 2) * d + p * NR + i % 2 * 16);
                             });
                    }
                }
            }
        });
    });
}

}  // extern "C"
