// Linear layers in f32: packing of weights, activations times weights with what follows fused in, weight gradients.
#include "gemm.h"

namespace {

constexpr long PACKED_ROWS = 16;  // of a weight, packed together for the backward pass

template <bool GELU>
void gate_up(const float* x, long m, long k, const float* B, long f, float* gate, float* up, float* act, int add) {
    gemm(x, k, m, B, k, f / W, [&](long row, long panel, vec g, vec u) ALWAYS {
        const long at = row * f + panel * W;
        if (add) {
            g += load(gate + at);
            u += load(up + at);
        }
        if (gate) {
            store(gate + at, g);
            store(up + at, u);
        }
        store(act + at, activation<GELU>(g).value * u);
    }, [&](long row, long panel) ALWAYS {
        const long at = row * f + panel * W;
        if (gate) {
            will_write(gate + at);
            will_write(up + at);
        }
        will_write(act + at);
    });
}

template <bool GELU>
void gate_up_backward(const float* dout, long m, long d, const float* B, long f, const float* gate, const float* up,
                      float* d_gate_up, float* act, int add) {
    gemm(dout, d, m, B, d, f / NR, [&](long row, long panel, vec a, vec b) ALWAYS {
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const long column = panel * NR + half * W, at = row * f + column;
            vec dact = half ? b : a;
            if (add) dact += load(act + at);
            const vec g = load(gate + at), u = load(up + at);
            const Activation of_g = activation<GELU>(g);
            store(act + at, of_g.value * u);
            store(d_gate_up + row * 2 * f + column, dact * (u * of_g.slope));
            store(d_gate_up + row * 2 * f + f + column, dact * of_g.value);
        }
    }, [&](long row, long panel) ALWAYS {
        const long at = row * f + panel * NR;
        will_read(gate + at);
        will_read(up + at);
        will_write(act + at);
        will_write(d_gate_up + row * f + at);
        will_write(d_gate_up + row * f + at + f);
    });
}

}  // namespace

extern "C" {

// W [n, k] for x W^T: B[panel][k][NR]. half: 0, or 1 for the left, 2 for the right W columns of each panel (gate and up
// side by side).
void slm_pack_forward(const float* weight, long n, long k, float* out, int half) {
    const long blocks = n / W;
#pragma omp parallel for schedule(static)
    for (long b = 0; b < blocks; b++) {
        const long panel = half ? b : b / 2, column = half ? (half - 1) * W : b % 2 * W;
        pack_weight(weight + b * W * k, k, out + panel * k * NR + column);
    }
}

// W [n, k] for dy W: at rows first_row.. of a stack of total_rows: B[panel of k][total_rows][NR]. The stack's last rows come
// last.
void slm_pack_backward(const float* weight, long n, long k, float* out, long first_row, long total_rows) {
    const long panels = k / NR;
    if (INTEGERS) {
#pragma omp parallel for schedule(static)
        for (long p = 0; p < panels; p++) {
            pack_rows(weight + p * NR, k, n, out + (p * total_rows + first_row) * NR);
            if (first_row + n == total_rows) finish_panel(out + p * total_rows * NR, total_rows);
        }
        return;
    }
    // Some rows at a time, so that memory is read in the order in which it lies.
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i += PACKED_ROWS)
        for (long p = 0; p < panels; p++)
            pack_rows(weight + i * k + p * NR, k, min_of(PACKED_ROWS, n - i), out + (p * total_rows + first_row + i) * NR);
}

// out [m, n] = x [m, k] B, plus residual [m, n] where given.
void slm_linear(const float* x, long m, long k, const float* B, long n, const float* residual, float* out) {
    gemm(x, k, m, B, k, n / NR, [&](long row, long panel, vec a, vec b) ALWAYS {
        const long at = row * n + panel * NR;
        if (residual) {
            a += load(residual + at);
            b += load(residual + at + W);
        }
        store(out + at, a);
        store(out + at + W, b);
    }, [&](long row, long panel) ALWAYS {
        will_write(out + row * n + panel * NR);
        if (residual) will_read(residual + row * n + panel * NR);
    });
}

// A gated feed-forward's first half: gate and up [m, f] and f(gate) * up, from panels that hold W gate and W up columns.
// gate may be null. gelu: f is GELU's tanh form, else SiLU. add: gate and up hold what is added to the products.
void slm_gate_up(const float* x, long m, long k, const float* B, long f, float* gate, float* up, float* act, int gelu, int add) {
    (gelu ? gate_up<true> : gate_up<false>)(x, m, k, B, f, gate, up, act, add);
}

// Backward of down(f(gate) * up): d_gate_up [m, 2 f] (gate's columns first) and act [m, f] from dout [m, d]. add: act holds
// what is added to its own gradient.
void slm_gate_up_backward(const float* dout, long m, long d, const float* B, long f, const float* gate, const float* up,
                          float* d_gate_up, float* act, int gelu, int add) {
    (gelu ? gate_up_backward<true> : gate_up_backward<false>)(dout, m, d, B, f, gate, up, d_gate_up, act, add);
}

// grad [n] (+)= the sums of the columns of dy [m, n], whose rows are ldy values apart; threads share the columns. n is a
// multiple of NR.
void slm_bias_gradient(const float* dy, long ldy, long m, long n, float* grad, int add) {
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i += NR) {
        vec a = {}, b = {};
        for (long row = 0; row < m; row++) {
            a += load(dy + row * ldy + i);
            b += load(dy + row * ldy + i + W);
        }
        store(grad + i, add ? load(grad + i) + a : a);
        store(grad + i + W, add ? load(grad + i + W) + b : b);
    }
}

// grad [n, k] (+)= dy [m, n]^T x [m, k]; dy has ldy values per row, x ldx. k is a multiple of NR. scratch:
// slm_weight_gradient_scratch values.
void slm_weight_gradient(const float* dy, long ldy, const float* x, long ldx, long m, long n, long k, float* grad, int add,
                         float* scratch) {
    const long panels = k / NR, strips = ceil_div(n, MR), block = gradient_rows(m);
    float *packed_x = scratch, *packed_dy = scratch + panels * block * NR;
    const long group = max_of(1, min_of(panels, L2_BYTES / (block * NR * VALUE_BYTES)));
    const long groups = ceil_div(panels, group), chunks = ceil_div(strips, STRIPS);
#pragma omp parallel
    for (long start = 0; start < m; start += block) {
        const long count = min_of(block, m - start);
        const bool fresh = start == 0 && !add;
#pragma omp for schedule(static) nowait
        for (long p = 0; p < panels; p++) pack_positions(x + start * ldx + p * NR, ldx, count, packed_x + p * block * NR);
#pragma omp for schedule(static)
        for (long s = 0; s < strips; s += STRIPS_AT_ONCE)
            pack_gradients(dy + start * ldy + s * MR, ldy, count, n - s * MR, packed_dy + s * block * MR, block * MR);
#pragma omp for schedule(dynamic)
        for (long task = 0; task < groups * chunks; task++) {
            const long first = task / chunks * group, top = task % chunks * STRIPS;
            for (long s = top; s < min_of(strips, top + STRIPS); s++)
                for (long p = first; p < min_of(panels, first + group); p++) {
                    const long row = s * MR;
                    gradient_tile(min_of(MR, n - row), count, packed_dy + s * block * MR, packed_x + p * block * NR,
                         [&](int r, vec a, vec b) ALWAYS {
                             float* g = grad + (row + r) * k + p * NR;
                             if (!fresh) {
                                 a += load(g);
                                 b += load(g + W);
                             }
                             store(g, a);
                             store(g + W, b);
                         },
                         [&](long part) ALWAYS {
                             if (part < MR) will_write(grad + (row + part) * k + p * NR);
                         });
                }
        }
    }
}

}  // extern "C"
