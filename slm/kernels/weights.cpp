// Linear layers: packing of weights, and their gradients.
#include "family.h"

namespace {

constexpr long PACKED_ROWS = 16;     // of a weight, packed together for the backward pass
constexpr long LINES = max_of(1, NR / LINE);  // of a panel's row in f32

}  // namespace

extern "C" {

// W [n, k] for x W^T: out[panel][k / PAIR][NR]. half: 0, or 1 for the left, 2 for the right LANES columns of each panel (gate
// and up side by side).
void slm_pack_forward(const float* weight, long n, long k, packed* out, int half) {
    const long blocks = n / LANES;
#pragma omp parallel for schedule(static)
    for (long b = 0; b < blocks; b++) {
        const long panel = half ? b : b / 2, column = half ? (half - 1) * LANES : b % 2 * LANES;
        pack_weight(weight + b * LANES * k, k, out + panel * (k / PAIR) * NR + column);
    }
}

// W [n, k] for dy W: at rows first_row.. of a stack of total_rows: out[panel of k][total_rows / PAIR][NR]. The stack's last
// rows come last.
void slm_pack_backward(const float* weight, long n, long k, packed* out, long first_row, long total_rows) {
    const long panels = k / NR;
    const auto at = [&](long p, long row) { return out + (p * total_rows + row) / PAIR * NR; };
    if (INTEGERS) {
#pragma omp parallel for schedule(static)
        for (long p = 0; p < panels; p++) {
            pack_weight_rows(weight + p * NR, k, n, at(p, first_row));
            if (first_row + n == total_rows) finish_panel(at(p, 0), total_rows);
        }
        return;
    }
    // Some rows at a time, so that memory is read in the order in which it lies.
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i += PACKED_ROWS)
        for (long p = 0; p < panels; p++)
            pack_weight_rows(weight + i * k + p * NR, k, min_of(PACKED_ROWS, n - i), at(p, first_row + i));
}

// grad [n, k] (+)= dy [m, n]^T x [m, k]; rows of dy and x are ldy and ldx values apart. k is a multiple of NR, in bf16 n of
// 16. scratch: slm_weight_gradient_scratch items.
void slm_weight_gradient(const value* dy, long ldy, const value* x, long ldx, long m, long n, long k, float* grad, int add,
                         packed* scratch) {
    const long panels = k / NR, block = gradient_block(m), apart = gradient_apart(m);
    packed *packed_x = scratch, *packed_dy = scratch + panels * apart * NR;
    const long group = max_of(1, min_of(panels, L2_BYTES / (block * NR * VALUE_BYTES)));
    const long rows = GRADIENT_STRIPS * MR, chunks = ceil_div(n, rows), tasks = ceil_div(panels, group) * chunks;
#pragma omp parallel
    for (long start = 0; start < m; start += block) {
        const TileUnit unit;
        const long count = min_of(block, m - start);
        const bool sums = start || add;
        const long lines = ceil_div(LINES * MR, max_of(1, count / PAIR / LINE));  // of the gradient, in one part of a tile
        pack_for_gradient(dy + start * ldy, ldy, n, x + start * ldx, ldx, k, count, apart, packed_dy, packed_x);
#pragma omp for schedule(dynamic)
        for (long task = 0; task < tasks; task++) {
            const long first = task / chunks * group, top = task % chunks * rows;
            for (long row = top; row < min_of(n, top + rows); row += MR)
                for (long p = first; p < min_of(panels, first + group); p++) {
                    float* out = grad + row * k + p * NR;
                    const auto ahead = [&](long part) ALWAYS {
                        // The next strip comes from memory while the product runs.
                        prefetch_far(packed_dy + (row + MR) * apart + ((p - first) * (block / PAIR / LINE) + part) * LINE);
                        for (long i = part * lines; i < min_of(LINES * MR, (part + 1) * lines); i++)
                            will_write(out + i / LINES * k + i % LINES * LINE);
                    };
                    // Not Into: GCC would then fuse the scales of integers with these sums.
                    const auto use = [&](int r, lanes a, lanes b) ALWAYS {
                        float* g = grad + (row + r) * k + p * NR;
                        if (sums) {
                            a += load_f32(g);
                            b += load_f32(g + LANES);
                        }
                        store_f32(g, a);
                        store_f32(g + LANES, b);
                    };
                    const packed *left = packed_dy + row * apart, *right = packed_x + p * apart * NR;
                    gradient_tile(min_of(MR, n - row), count, left, right, use, ahead, sums, out, k);
                }
        }
    }
}

}  // extern "C"
