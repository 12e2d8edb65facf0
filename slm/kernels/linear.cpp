// Linear layers: activations times packed weights with what follows fused in. weights.cpp packs the weights and computes
// their gradients.
#include "family.h"

extern "C" {

// out [m, n] = x [m, k] B, plus residual [m, n] where given.
void slm_linear(const value* x, long m, long k, const packed* B, long n, const value* residual, value* out) {
    gemm(x, k, m, B, k, block_of(k), n / NR, [&](long row, long panel, lanes a, lanes b) ALWAYS {
        const long at = row * n + panel * NR;
        if (residual) {
            a += load_value(residual + at);
            b += load_value(residual + at + LANES);
        }
        store_values(out + at, a, b);
    }, [&](long row, long panel) ALWAYS {
        will_write(out + row * n + panel * NR);
        if (residual) will_read(residual + row * n + panel * NR);
    });
}

// A gated feed-forward's first half: gate and up [m, f] and f(gate) * up, from panels that hold LANES gate and LANES up columns.
// gate may be null. gelu: f is GELU's tanh form, else SiLU. add: gate and up hold what is added to the products.
void slm_gate_up(const value* x, long m, long k, const packed* B, long f, value* gate, value* up, value* act, int gelu, int add) {
    gemm(x, k, m, B, k, block_of(k), f / LANES, [&](long row, long panel, lanes g, lanes u) ALWAYS {
        const long at = row * f + panel * LANES;
        if (add) {
            g += load_value(gate + at);
            u += load_value(up + at);
        }
        if (gate) {
            store_value(gate + at, g);
            store_value(up + at, u);
        }
        store_value(act + at, activation(g, gelu).value * u);
    }, [&](long row, long panel) ALWAYS {
        const long at = row * f + panel * LANES;
        if (gate) {
            will_write(gate + at);
            will_write(up + at);
        }
        will_write(act + at);
    });
}

// Backward of down(f(gate) * up): d_gate_up [m, 2 f] (gate's columns first) and act [m, f] from dout [m, d]. add: act holds
// what is added to its own gradient.
void slm_gate_up_backward(const value* dout, long m, long d, const packed* B, long f, const value* gate, const value* up,
                          value* d_gate_up, value* act, int gelu, int add) {
    gemm(dout, d, m, B, d, block_of(d), f / NR, [&](long row, long panel, lanes a, lanes b) ALWAYS {
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const long column = panel * NR + half * LANES, at = row * f + column;
            lanes dact = half ? b : a;
            if (add) dact += load_value(act + at);
            const lanes g = load_value(gate + at), u = load_value(up + at);
            const Activation of_g = activation(g, gelu);
            store_value(act + at, of_g.value * u);
            store_value(d_gate_up + row * 2 * f + column, dact * (u * of_g.slope));
            store_value(d_gate_up + row * 2 * f + f + column, dact * of_g.value);
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

// grad [n] (+)= the sums of the columns of dy [m, n], whose rows are ldy values apart; threads share the columns. n is a
// multiple of LANES.
void slm_bias_gradient(const value* dy, long ldy, long m, long n, float* grad, int add) {
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i += NR) {
        const bool two = i + LANES < n;
        lanes a = {}, b = {};
        for (long row = 0; row < m; row++) {
            a += load_value(dy + row * ldy + i);
            if (two) b += load_value(dy + row * ldy + i + LANES);
        }
        store_f32(grad + i, add ? load_f32(grad + i) + a : a);
        if (two) store_f32(grad + i + LANES, add ? load_f32(grad + i + LANES) + b : b);
    }
}

}  // extern "C"
