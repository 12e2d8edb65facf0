// Linear layers: packing of f32 weights, activations times weights with what follows fused in, weight gradients.
#include "gemm.h"

namespace {

// Rows of f32 as bf16, 16 rows x 32 columns, to pairs along the row.
void pack_forward_block(const float* from, long ld, long cols, pair_t* out) {
    for (long c = 0; c < cols; c += 32) {
        __m512i r[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            r[i] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + i * ld + c + 16), _mm512_loadu_ps(from + i * ld + c));
        transpose16(r);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) _mm512_storeu_si512(out + (c / 2 + i) * NR, r[i]);
    }
}

constexpr long PACKED_ROWS = 32;  // positions of a weight gradient that are packed together: a group of AMX's pairs

INLINE void will_read_rows(const bf16* from, long ld, long rows) {
    for (long r = 0; r < rows; r++) will_read(from + r * ld);
}

template <bool GELU>
void gate_up(const bf16* x, long m, long k, const pair_t* B, long f, bf16* gate, bf16* up, bf16* act, int add) {
    gemm(x, k, m, B, k / 2, f / 16, [&](long row, long panel, __m512 g, __m512 u) {
        const long at = row * f + panel * 16;
        if (add) {
            g = _mm512_add_ps(g, load_bf16(gate + at));
            u = _mm512_add_ps(u, load_bf16(up + at));
        }
        if (gate) {
            store_bf16(gate + at, g);
            store_bf16(up + at, u);
        }
        store_bf16(act + at, _mm512_mul_ps(activation512<GELU>(g).value, u));
    }, [&](long row, long panel) ALWAYS {
        const long at = row * f + panel * 16;
        if (gate) {
            will_write(gate + at);
            will_write(up + at);
        }
        will_write(act + at);
    });
}

template <bool GELU>
void gate_up_backward(const bf16* dout, long m, long d, const pair_t* B, long f, const bf16* gate, const bf16* up,
                      bf16* d_gate_up, bf16* act, int add) {
    gemm(dout, d, m, B, d / 2, f / NR, [&](long row, long panel, __m512 a, __m512 b) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const long column = panel * NR + half * 16, at = row * f + column;
            __m512 dact = half ? b : a;
            if (add) dact = _mm512_add_ps(dact, load_bf16(act + at));
            const __m512 g = load_bf16(gate + at), u = load_bf16(up + at);
            const Activation of_g = activation512<GELU>(g);
            store_bf16(act + at, _mm512_mul_ps(of_g.value, u));
            store_bf16(d_gate_up + row * 2 * f + column, _mm512_mul_ps(dact, _mm512_mul_ps(u, of_g.slope)));
            store_bf16(d_gate_up + row * 2 * f + f + column, _mm512_mul_ps(dact, of_g.value));
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

// W [n, k] f32 for x W^T: out[n / 32][k / 2][32], panels of 32 outputs. half: 0, or 1 for the left and 2 for the right 16
// columns of every panel (gate and up side by side: out then has n / 16 panels, of which this fills one half each).
void slm_pack_forward(const float* W, long n, long k, pair_t* out, int half) {
    const long blocks = n / 16;
#pragma omp parallel for schedule(static)
    for (long b = 0; b < blocks; b++) {
        const long panel = half ? b : b / 2, column = half ? (half - 1) * 16 : b % 2 * 16;
        pack_forward_block(W + b * 16 * k, k, k, out + panel * (k / 2) * NR + column);
    }
}

// W [n, k] f32 for dy W: out[k / 32][total_rows / 2][32], pairs along n. W's rows are first_row and those after it of
// total_rows, where several layers are stacked along their outputs.
void slm_pack_backward(const float* W, long n, long k, pair_t* out, long first_row, long total_rows) {
    const long panels = k / NR;
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n / 2; i++)
        for (long p = 0; p < panels; p++) {
            const float *even = W + 2 * i * k + p * NR, *odd = even + k;
            pair_t* o = out + (p * (total_rows / 2) + first_row / 2 + i) * NR;
            for (int c = 0; c < NR; c += 16)
                _mm512_storeu_si512(o + c, interleave(_mm512_loadu_ps(even + c), _mm512_loadu_ps(odd + c)));
        }
}

// out [m, n] = x [m, k] B, plus residual [m, n] where given.
void slm_linear(const bf16* x, long m, long k, const pair_t* B, long n, const bf16* residual, bf16* out) {
    gemm(x, k, m, B, k / 2, n / NR, [&](long row, long panel, __m512 a, __m512 b) {
        const long at = row * n + panel * NR;
        if (residual) {
            a = _mm512_add_ps(a, load_bf16(residual + at));
            b = _mm512_add_ps(b, load_bf16(residual + at + 16));
        }
        store_bf16(out + at, a, b);
    }, [&](long row, long panel) ALWAYS {
        will_write(out + row * n + panel * NR);
        if (residual) will_read(residual + row * n + panel * NR);
    });
}

// A gated feed-forward's first half: gate and up [m, f] and f(gate) * up, from panels that hold 16 gate and 16 up columns.
// gate may be null. gelu: f is GELU's tanh form, else SiLU. add: gate and up hold what is added to the products.
void slm_gate_up(const bf16* x, long m, long k, const pair_t* B, long f, bf16* gate, bf16* up, bf16* act, int gelu, int add) {
    (gelu ? gate_up<true> : gate_up<false>)(x, m, k, B, f, gate, up, act, add);
}

// Backward of down(f(gate) * up): d_gate_up [m, 2 f] (gate's columns first) and act [m, f] from dout [m, d]. add: act holds
// what is added to its own gradient.
void slm_gate_up_backward(const bf16* dout, long m, long d, const pair_t* B, long f, const bf16* gate, const bf16* up,
                          bf16* d_gate_up, bf16* act, int gelu, int add) {
    (gelu ? gate_up_backward<true> : gate_up_backward<false>)(dout, m, d, B, f, gate, up, d_gate_up, act, add);
}

// grad [n] (+)= the sums of the columns of dy [m, n], whose rows are ldy values apart; threads share the columns. n is a
// multiple of 16.
void slm_bias_gradient(const bf16* dy, long ldy, long m, long n, float* grad, int add) {
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i += 16) {
        __m512 sum = add ? _mm512_loadu_ps(grad + i) : _mm512_setzero_ps();
        for (long row = 0; row < m; row++) sum = _mm512_add_ps(sum, load_bf16(dy + row * ldy + i));
        _mm512_storeu_ps(grad + i, sum);
    }
}

// grad [n, k] (+)= dy [m, n]^T x [m, k], f32; rows of dy and x are ldy and ldx values apart. n and k are multiples of 16
// and 32. scratch: slm_weight_gradient_scratch pairs.
void slm_weight_gradient(const bf16* dy, long ldy, const bf16* x, long ldx, long m, long n, long k, float* grad,
                         int add, pair_t* scratch) {
    const long panels = k / NR;
    const long block = gradient_block(m);  // positions packed at once
    const long pairs = block / 2, apart = gradient_apart(m);
    pair_t *packed_x = scratch, *packed_dy = scratch + panels * apart * NR;
    const long group = max_of(1, min_of(panels, L2_BYTES / (pairs * NR * (long)sizeof(pair_t))));
    const long groups = ceil_div(panels, group);
    const long rows = ceil_div(48, MR) * MR, chunks = ceil_div(n, rows);  // rows of a task
#pragma omp parallel
    for (long start = 0; start < m; start += block) {
        const TileUnit unit;
        const long count = min_of(block, m - start), n_pairs = pairs_of(count);
        const bool store = start == 0 && !add;
        const long lines = ceil_div(2 * MR, max_of(1, n_pairs / 16));  // of the gradient, asked for in 16 pairs
        // By rows, so that memory is read in the order in which it lies.
#pragma omp for schedule(static)
        for (long i = 0; i < 2 * n_pairs; i += PACKED_ROWS) {
            const long here = min_of(PACKED_ROWS, count - i), filled = ceil_div(here, 2);
            const long all = min_of(PACKED_ROWS / 2, n_pairs - i / 2);  // pairs, with those that fill up
            for (long c = 0; c < k; c += NR) {
                const bf16* from = x + (start + i) * ldx + c;
                pair_t* panel = packed_x + c * apart + i / 2 * NR;
                will_read_rows(from + 2 * NR, ldx, here);
                pack_rows(from, ldx, here, panel);
                memset(panel + filled * NR, 0, (all - filled) * NR * sizeof(pair_t));
            }
            for (long q = 0; q < n; q += NR) {
                const bf16* from = dy + (start + i) * ldy + q;
                will_read_rows(from + 2 * NR, ldy, here);
                pack_left(from, ldy, here, min_of(NR, n - q), packed_dy + q * apart, i / 2, apart);
            }
        }
#pragma omp for schedule(dynamic)
        for (long task = 0; task < groups * chunks; task++) {
            const long first = task / chunks * group, top = task % chunks * rows;
            for (long row = top; row < min_of(n, top + rows); row += MR)
                for (long p = first; p < min_of(panels, first + group); p++) {
                    tile_packed_into(!store, grad + row * k + p * NR, k, min_of(MR, n - row), n_pairs,
                               packed_dy + row * apart, packed_x + p * apart * NR,
                               [&](long part) ALWAYS {
                                   // The next strip and the gradient come from memory while the product runs.
                                   const long line = (p - first) * (pairs / 16) + part;
                                   prefetch_far(packed_dy + (row + MR) * apart + line * 16);
                                   for (long i = part * lines; i < min_of(2 * MR, (part + 1) * lines); i++)
                                       will_write(grad + (row + i / 2) * k + p * NR + i % 2 * 16);
                               });
                }
        }
    }
}

}  // extern "C"
