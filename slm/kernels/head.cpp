// The output head's cross-entropy. Logits exist for some rows at a time, and their gradient takes their place.
#include "family.h"

namespace {

// A row of v logits, capped in place (z becomes cap tanh(z / cap): soft-capping, Gemma 2); `offsets` (or null) are added
// after it. slopes: [v], or null: the derivatives of the capped logits in those before.
__attribute__((noinline)) void cap_row(value* z, long v, float cap, const float* offsets, value* slopes) {
    const float into = 1.0f / cap;
    for (long i = 0; i < v; i += NR) {
        const lanes a = tanh_of(load_logits(z + i) * into), b = tanh_of(load_logits(z + i + LANES) * into);
        if (slopes) store_values(slopes + i, 1.0f - a * a, 1.0f - b * b);
        lanes left = a * cap, right = b * cap;
        if (offsets) {
            left += load_f32(offsets + i);
            right += load_f32(offsets + i + LANES);
        }
        store_logits(z + i, left, right);
    }
}

}  // namespace

extern "C" {

// Cross-entropy of m positions over v tokens, and its gradient in the logits. x [m, d] against the head B (forward
// packing). cap: logits z become cap tanh(z / cap), and `slopes` [m, v], where given, get the derivatives of that; 0: they
// stay. offsets: [v], added to every position's logits, or null. Logits [m, v] become scale * (softmax - one-hot) in
// place, which is the gradient in the capped ones (keep = 0: LOSS_ROWS rows are used again and again, and hold nothing of
// use afterwards). Targets below zero are not scored, and have slopes of zero. losses [m]: -log p(target), 0 where not
// scored.
void slm_cross_entropy(const value* x, long m, long d, const packed* B, long v, float cap, const float* offsets,
                       const int64_t* targets, float scale, int keep, value* logits, value* slopes, float* losses) {
    const auto block = [&](Share& share, long start) {
        const long n = min_of(LOSS_ROWS, m - start);
        value* out = logits + (keep ? start * v : 0);
        gemm_loop(share, x + start * d, d, n, B, d, block_of(d), v / NR, [&](long row, long panel, lanes a, lanes b) ALWAYS {
            if (offsets && !cap) {
                a += load_f32(offsets + panel * NR);
                b += load_f32(offsets + panel * NR + LANES);
            }
            store_logits(out + row * v + panel * NR, a, b);
        }, [&](long row, long panel) ALWAYS { will_write(out + row * v + panel * NR); });
        share.each(n, [&](long r) {
            value* z = out + r * v;
            const long target = targets[start + r];
            if (target < 0) {
                losses[start + r] = 0;
                if (keep) memset(z, 0, v * sizeof(value));
                if (slopes) memset(slopes + (start + r) * v, 0, v * sizeof(value));
                return;
            }
            if (cap) cap_row(z, v, cap, offsets, slopes ? slopes + (start + r) * v : nullptr);
            lanes top = all(-std::numeric_limits<float>::infinity());
            for (long i = 0; i < v; i += LANES) top = max_of(top, load_logits(z + i));
            const float high = max_lane(top), shift = high * LOG2_E;
            lanes sum = {};
            for (long i = 0; i < v; i += LANES) sum += exp2_of(load_logits(z + i) * LOG2_E - shift);
            const float total = std::log(sum_of(sum)) + high, nats = total - logit_at(z + target);
            losses[start + r] = nats;
            if (!keep) return;
            const float lse = total * LOG2_E;
            for (long i = 0; i < v; i += LANES) store_value(z + i, exp2_of(load_logits(z + i) * LOG2_E - lse) * scale);
            z[target] = value_of((std::exp(-nats) - 1.0f) * scale);
        });
    };
    in_parallel([&](Share& share) {
        for (long start = 0; start < m; start += LOSS_ROWS) block(share, start);
    });
}

// dx [m, d] = dlogits [m, v] W, with W packed for the backward pass; blocks of the vocabulary keep W's panels in the cache.
void slm_head_backward(const value* dlogits, long m, long v, const packed* B, long d, value* dx) {
    gemm(dlogits, v, m, B, v, head_block(v), d / NR, [&](long row, long panel, lanes a, lanes b) ALWAYS {
        store_values(dx + row * d + panel * NR, a, b);
    }, [&](long row, long panel) ALWAYS { will_write(dx + row * d + panel * NR); });
}

}  // extern "C"
