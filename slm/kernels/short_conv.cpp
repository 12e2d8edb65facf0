// The gated short convolution, forward and backward: y = c * sum over the taps of tap * (b * x) of a position before.
#include "family.h"

// The first position of its sequence that a row may see.
INLINE long start_of(const int32_t* starts, long row) { return starts ? starts[row] : 0; }

extern "C" {

// bcx [B T, 3 D]: b, c and x of each position. taps [W, D], the oldest position's first. starts [B, T]: the first position
// that each may see, never falling; null: all before it. out [B T, D].
void slm_short_conv(const value* bcx, long B, long T, long D, long W, const float* taps, const int32_t* starts, value* out) {
#pragma omp parallel for schedule(static)
    for (long row = 0; row < B * T; row++) {
        const long t = row % T, first = max_of(start_of(starts, row), t - (W - 1));
        const value* own = bcx + row * 3 * D;
        for (long i = 0; i < D; i += LANES) {
            lanes sum = {};
            for (long s = first; s <= t; s++) {
                const value* seen = own - (t - s) * 3 * D + i;
                sum += load_value(seen) * load_value(seen + 2 * D) * load_f32(taps + (W - 1 - t + s) * D + i);
            }
            store_value(out + row * D + i, load_value(own + D + i) * sum);
        }
    }
}

// From dy [B T, D] the gradients of bcx (d_bcx) and of the taps (d_taps [W, D], stored). partial: f32 scratch
// [NORM_PARTS, W, D] (slm_short_conv_scratch). Each part sums up its own rows, so that the order of sums is fixed.
void slm_short_conv_backward(const value* bcx, const value* dy, long B, long T, long D, long W, const float* taps,
                             const int32_t* starts, value* d_bcx, float* d_taps, float* partial) {
    const long rows = ceil_div(B * T, NORM_PARTS);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (long part = 0; part < NORM_PARTS; part++) {
            float* sums = partial + part * W * D;
            memset(sums, 0, W * D * sizeof(float));
            for (long row = part * rows; row < min_of(B * T, (part + 1) * rows); row++) {
                const long t = row % T, first = max_of(start_of(starts, row), t - (W - 1));
                long last = t;  // of the positions that see this one
                while (last + 1 < min_of(T, t + W) && start_of(starts, row + last + 1 - t) <= t) last++;
                const value *own = bcx + row * 3 * D, *gradient = dy + row * D;
                for (long i = 0; i < D; i += LANES) {
                    const lanes g = load_value(gradient + i), gated = g * load_value(own + D + i);
                    lanes y = {}, du = {};
                    for (long s = first; s <= t; s++) {
                        const value* seen = own - (t - s) * 3 * D + i;
                        const long tap = (W - 1 - t + s) * D + i;
                        const lanes u = load_value(seen) * load_value(seen + 2 * D);
                        y += u * load_f32(taps + tap);
                        store_f32(sums + tap, load_f32(sums + tap) + gated * u);
                    }
                    for (long s = t; s <= last; s++) {
                        const lanes c = load_value(own + (s - t) * 3 * D + D + i);
                        du += load_value(gradient + (s - t) * D + i) * c * load_f32(taps + (W - 1 - s + t) * D + i);
                    }
                    value* d = d_bcx + row * 3 * D + i;
                    store_value(d, du * load_value(own + 2 * D + i));
                    store_value(d + D, g * y);
                    store_value(d + 2 * D, du * load_value(own + i));
                }
            }
        }
#pragma omp for schedule(static)
        for (long i = 0; i < W * D; i += LANES) {
            lanes sum = {};
            for (long part = 0; part < NORM_PARTS; part++) sum += load_f32(partial + part * W * D + i);
            store_f32(d_taps + i, sum);
        }
    }
}

}  // extern "C"
