// The gradient of the output head's input, in f32.
#include "gemm.h"

namespace {
constexpr long BLOCK = 1024;  // logits that a product takes at once
}

extern "C" {

// dx [m, d] = dlogits [m, v] W, with W packed for the backward pass; blocks of the vocabulary keep W's panels in the cache.
// sum: scratch [m, d], not used here (the results are the sums).
void slm_head_backward(const float* dlogits, long m, long v, const float* B, long d, float* dx, float*) {
    const long panels = d / NR, block = INTEGERS ? block_of(v) : BLOCK;
    const long group = max_of(1, min_of(panels, L2_BYTES / (block * NR * VALUE_BYTES)));
    // A task owns its part of dx and walks the whole vocabulary.
    const auto task = [&](long column, long strip, long end) ALWAYS {
        const long first = column * group;
        Rows<> own;
        for (long start = 0; start < v; start += block) {
            const long depth = min_of(block, v - start);
            own.take(dlogits + strip * MR * v + start, v, min_of((end - strip) * MR, m - strip * MR), depth);
            for (long s = strip; s < end; s++)
                for (long p = first; p < min_of(panels, first + group); p++) {
                    const long row = s * MR;
                    own.product(row - strip * MR, min_of(MR, m - row), depth, B + (p * v + start) * NR,
                         [&](int r, vec a, vec b) ALWAYS {
                             float* c = dx + (row + r) * d + p * NR;
                             if (start) {
                                 a += load(c);
                                 b += load(c + W);
                             }
                             store(c, a);
                             store(c + W, b);
                         }, Nothing{});
                }
        }
    };
    in_parallel([&](Share& share) {
        share.each(ceil_div(panels, group), ceil_div(m, MR), STRIPS, task);
    });
}

}  // extern "C"
