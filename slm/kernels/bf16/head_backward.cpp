// The gradient of the output head's input, in bf16.
#include "gemm.h"

extern "C" {

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
