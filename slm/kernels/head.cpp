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

// The loss of one position by its logits z [v]; with `keep` they become scale * (softmax - one-hot). 0 and zeros where the
// target is below zero. cap, offsets, slopes: as in cap_row, where cap is not 0.
INLINE float cross_entropy(value* z, long v, long target, float scale, int keep, float cap, const float* offsets, value* slopes) {
    if (target < 0) {
        if (keep) memset(z, 0, v * sizeof(value));
        if (slopes) memset(slopes, 0, v * sizeof(value));
        return 0;
    }
    if (cap) cap_row(z, v, cap, offsets, slopes);
    lanes top = all(-std::numeric_limits<float>::infinity());
    for (long i = 0; i < v; i += LANES) top = max_of(top, load_logits(z + i));
    const float high = max_lane(top), shift = high * LOG2_E;
    lanes sum = {};
    for (long i = 0; i < v; i += LANES) sum += exp2_of(load_logits(z + i) * LOG2_E - shift);
    const float total = std::log(sum_of(sum)) + high, nats = total - logit_at(z + target);
    if (!keep) return nats;
    const float lse = total * LOG2_E;
    for (long i = 0; i < v; i += LANES) store_value(z + i, exp2_of(load_logits(z + i) * LOG2_E - lse) * scale);
    z[target] = value_of((std::exp(-nats) - 1.0f) * scale);
    return nats;
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
            value* bends = slopes ? slopes + (start + r) * v : nullptr;
            losses[start + r] = cross_entropy(out + r * v, v, targets[start + r], scale, keep, cap, offsets, bends);
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

// The same in three calls that need some of the head's rows at a time, packed as if they were a whole head.

// Rows of a head of v that slm_head_backward_part takes at once to give the values of slm_head_backward to the bit.
long slm_head_block(long v) { return head_block(v); }

// logits [m, n] = x [m, d] B, plus offsets [n] where given; rows of logits are ld values apart.
void slm_head_logits(const value* x, long m, long d, const packed* B, long n, const float* offsets, value* logits, long ld) {
    gemm(x, d, m, B, d, block_of(d), n / NR, [&](long row, long panel, lanes a, lanes b) ALWAYS {
        if (offsets) {
            a += load_f32(offsets + panel * NR);
            b += load_f32(offsets + panel * NR + LANES);
        }
        store_logits(logits + row * ld + panel * NR, a, b);
    }, [&](long row, long panel) ALWAYS { will_write(logits + row * ld + panel * NR); });
}

// losses [m] of logits [m, v], which become scale * (softmax - one-hot) where they are kept. cap, slopes: as in
// slm_cross_entropy; offsets count with a cap alone, and slm_head_logits has added them otherwise.
void slm_softmax(value* logits, long m, long v, float cap, const float* offsets, const int64_t* targets, float scale, int keep,
                 value* slopes, float* losses) {
    in_parallel([&](Share& share) {
        share.each(m, [&](long r) {
            value* bends = slopes ? slopes + r * v : nullptr;
            losses[r] = cross_entropy(logits + r * v, v, targets[r], scale, keep, cap, offsets, bends);
        });
    });
}

// dx [m, d], f32, (+)= dlogits [m, n] W; rows of dlogits are ld values apart.
void slm_head_backward_part(const value* dlogits, long ld, long m, const packed* B, long n, long d, float* dx, int add) {
    gemm(dlogits, ld, m, B, n, head_block(n), d / NR, [&](long row, long panel, lanes a, lanes b) ALWAYS {
        float* out = dx + row * d + panel * NR;
        if (add) {
            a += load_f32(out);
            b += load_f32(out + LANES);
        }
        store_f32(out, a);
        store_f32(out + LANES, b);
    }, [&](long row, long panel) ALWAYS { will_write(dx + row * d + panel * NR); });
}

}  // extern "C"
