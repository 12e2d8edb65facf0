// The output head with its cross-entropy in f32: the logits exist only some rows at a time, and become their own gradient.
#include "gemm.h"

namespace {
constexpr long BLOCK = 1024;  // words of the vocabulary that the gradient's product takes at once
}

extern "C" {

// Cross-entropy of m positions over v words, and its gradient in the logits. x [m, d] against the head B (forward
// packing). offsets: [v], added to every position's logits, or null. Logits [m, v] become scale * (softmax - one-hot) in
// place (keep = 0: LOSS_ROWS rows are used again and again, and hold nothing of use afterwards). Targets below zero are not
// scored. losses [m]: -log p(target), 0 where not scored.
void slm_cross_entropy(const float* x, long m, long d, const float* B, long v, const float* offsets, const int64_t* targets,
                       float scale, int keep, float* logits, float* losses) {
    const auto block = [&](Share& share, long start) {
        const long n = min_of(LOSS_ROWS, m - start);
        float* out = logits + (keep ? start * v : 0);
        gemm_loop(share, x + start * d, d, n, B, d, v / NR, [&](long row, long panel, vec a, vec b) ALWAYS {
            if (offsets) {
                a += load(offsets + panel * NR);
                b += load(offsets + panel * NR + W);
            }
            store(out + row * v + panel * NR, a);
            store(out + row * v + panel * NR + W, b);
        }, [&](long row, long panel) ALWAYS { will_write(out + row * v + panel * NR); });
        share.each(n, [&](long r) {
            float* z = out + r * v;
            const long target = targets[start + r];
            if (target < 0) {
                losses[start + r] = 0;
                if (keep) memset(z, 0, v * sizeof(float));
                return;
            }
            vec top = all(-std::numeric_limits<float>::infinity());
            for (long i = 0; i < v; i += W) top = max_of(top, load(z + i));
            const float high = max_lane(top), shift = high * LOG2_E;
            vec sum = {};
            for (long i = 0; i < v; i += W) sum += exp2_of(load(z + i) * LOG2_E - shift);
            const float total = std::log(sum_of(sum)) + high, nats = total - z[target];
            losses[start + r] = nats;
            if (!keep) return;
            const float lse = total * LOG2_E;
            for (long i = 0; i < v; i += W) store(z + i, exp2_of(load(z + i) * LOG2_E - lse) * scale);
            z[target] = (std::exp(-nats) - 1.0f) * scale;
        });
    };
    in_parallel([&](Share& share) {
        for (long start = 0; start < m; start += LOSS_ROWS) block(share, start);
    });
}

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
