// The f32 training kernels against plain loops in double precision, as a program without PyTorch: it can be compiled for
// another processor and run by an emulator. Prints a line for each kernel, and ends with 1 where one is wrong, or gives
// other bits with another number of threads.
#include <omp.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "family.h"

extern "C" {
void slm_pack_forward(const float*, long, long, float*, int);
void slm_pack_backward(const float*, long, long, float*, long, long);
void slm_linear(const float*, long, long, const float*, long, const float*, float*);
void slm_gate_up(const float*, long, long, const float*, long, float*, float*, float*, int, int);
void slm_gate_up_backward(const float*, long, long, const float*, long, const float*, const float*, float*, float*, int, int);
void slm_bias_gradient(const float*, long, long, long, float*, int);
void slm_weight_gradient(const float*, long, const float*, long, long, long, long, float*, int, float*);
long slm_weight_gradient_scratch(long, long, long);
void slm_rmsnorm(const float*, long, long, const float*, float, float*, float*);
void slm_rmsnorm_backward(const float*, const float*, const float*, const float*, long, long, const float*, float*, float*, int,
                          float*);
long slm_rmsnorm_backward_scratch(long);
void slm_head_backward(const float*, long, long, const float*, long, float*);
void slm_cross_entropy(const float*, long, long, const float*, long, float, const float*, const int64_t*, float, int, float*,
                       float*, float*);
void slm_adamw(const void*, long, const void*);
double slm_sum_of_squares(const void*, long);
long slm_attention_scratch(long, long, long, long);
long slm_attention_backward_scratch(long, long, long, long);
int slm_attention_forward(const float*, long, long, long, long, long, long, const float*, const float*, const float*, const float*,
                          float, float, const int32_t*, float*, float*, float*);
int slm_attention_backward(const float*, long, long, long, long, long, long, const float*, const float*, const float*, const float*,
                           float, float, const int32_t*, const float*, const float*, const float*, float*, float*, float*, float*);
}

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

static uint64_t state = 7;
static float number() {  // from -1 to 1
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(state >> 33) / (1u << 30) - 1.0);
}
static Floats numbers(long n) {
    Floats x(n);
    for (float& each : x) each = number();
    return x;
}

static bool failed = false;
static int turn = 0;                // 0: next to plain loops; then with other numbers of threads
static std::vector<Floats> before;  // results of turn 0
static size_t results = 0;          // so far, in this turn

static const char* kind = "";  // follows the names of what is compared

// `plain()` gives what `ours` should be. `all` is what does not depend on the number of threads, where that is more.
template <class Plain>
static void compare(const char* name, const Floats& ours, const Plain& plain, const Floats& all = {}) {
    const Floats& bits = all.empty() ? ours : all;
    if (turn) {
        const Floats& first = before[results++];
        if (memcmp(bits.data(), first.data(), bits.size() * sizeof(float))) {
            printf("%s%s depends on the number of threads\n", name, kind);
            failed = true;
        }
        return;
    }
    before.push_back(bits);
    const Doubles theirs = plain();
    double apart = 0, size = 0;
    for (size_t i = 0; i < theirs.size(); i++) {
        apart += (ours[i] - theirs[i]) * (ours[i] - theirs[i]);
        size += theirs[i] * theirs[i];
    }
    const double error = std::sqrt(apart / size);
    const bool right = error < 1e-5 && ours.size() == theirs.size();  // false for NaN
    printf("%s%s %.1e%s\n", name, kind, error, right ? "" : " WRONG");
    failed |= !right;
}

// y [m, n] = x [m, k] w [n, k]^T.
template <class Weights>
static Doubles product(const Floats& x, const Weights& w, long m, long k, long n) {
    Doubles y(m * n);
    for (long i = 0; i < m; i++)
        for (long j = 0; j < n; j++)
            for (long e = 0; e < k; e++) y[i * n + j] += (double)x[i * k + e] * w[j * k + e];
    return y;
}

static Doubles turned(const Floats& w, long rows, long columns) {
    Doubles t(w.size());
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < columns; j++) t[j * rows + i] = w[i * columns + j];
    return t;
}

static void functions() {
    Floats powers, sigmoids, tanhs;
    for (double x = -126; x < 127; x += 0.37) powers.push_back((float)(exp2_of(all((float)x))[W - 1] / std::exp2((double)(float)x)));
    for (double x = -87; x < 95; x += 0.37) sigmoids.push_back((float)(sigmoid(all((float)x))[0] * (1 + std::exp(-(double)(float)x))));
    for (double x = -12; x < 12; x += 0.0037) tanhs.push_back((float)(tanh_of(all((float)x))[0] / std::tanh((double)(float)x)));
    compare("2^x, relative", powers, [&] { return Doubles(powers.size(), 1.0); });
    compare("sigmoid, relative", sigmoids, [&] { return Doubles(sigmoids.size(), 1.0); });
    compare("tanh, relative", tanhs, [&] { return Doubles(tanhs.size(), 1.0); });
    Floats lanes(W), found;
    for (long i = 0; i < W; i++) lanes[i] = (float)(i * 7 % W) - 1.5f;
    const float low = -std::numeric_limits<float>::infinity();
    for (float each : {sum_of(load(lanes.data())), max_lane(load(lanes.data())), exp2_of(all(low))[0], sigmoid(all(-1e30f))[0]})
        found.push_back(each);
    compare("sum, maximum, limits", found, [] { return Doubles{W * (W - 1) / 2 - 1.5 * W, W - 2.5, 0, 0}; });
}

// More than a task's rows, and more than a task's depth.
static void linear() {
    const long m = STRIPS * MR + 5, k = DEPTH + 88, n = 3 * NR;
    const Floats x = numbers(m * k), w = numbers(n * k), residual = numbers(m * n);
    Floats packed(n * k), y(m * n);
    slm_pack_forward(w.data(), n, k, packed.data(), 0);
    slm_linear(x.data(), m, k, packed.data(), n, residual.data(), y.data());
    compare("linear", y, [&] {
        Doubles expected = product(x, w, m, k, n);
        for (size_t i = 0; i < expected.size(); i++) expected[i] += residual[i];
        return expected;
    });

    const long d = 2 * NR;  // dx = dy w, for w [n, d]
    const Floats dy = numbers(m * n), v = numbers(n * d);
    Floats dx(m * d), back(n * d);
    slm_pack_backward(v.data(), n, d, back.data(), 0, n);
    slm_linear(dy.data(), m, n, back.data(), d, nullptr, dx.data());
    compare("linear backward", dx, [&] { return product(dy, turned(v, n, d), m, n, d); });
}

// f(x) and its slope, of SiLU or GELU's tanh form.
static void activation_of(double x, int gelu, double& value, double& slope) {
    const double c = 2 * std::sqrt(2 / std::acos(-1.0)), z = gelu ? c * (x + 0.044715 * x * x * x) : x;
    const double s = 1 / (1 + std::exp(-z)), dz = gelu ? c * (1 + 3 * 0.044715 * x * x) : 1;
    value = x * s;
    slope = s + x * s * (1 - s) * dz;
}

static void gate_up(int gelu) {
    const long m = STRIPS * MR + 1, k = 40, f = 2 * NR;
    const Floats x = numbers(m * k), g = numbers(f * k), u = numbers(f * k);
    Floats packed(2 * f * k), gate = numbers(m * f), up = numbers(m * f), act(m * f);
    const int add = gelu;  // with one of the two activations
    const Floats first_gate = gate, first_up = up;
    slm_pack_forward(g.data(), f, k, packed.data(), 1);
    slm_pack_forward(u.data(), f, k, packed.data(), 2);
    slm_gate_up(x.data(), m, k, packed.data(), f, gate.data(), up.data(), act.data(), gelu, add);
    Doubles gates = product(x, g, m, k, f), ups = product(x, u, m, k, f);
    for (long i = 0; add && i < m * f; i++) gates[i] += first_gate[i], ups[i] += first_up[i];
    double value, slope;
    compare(gelu ? "gate and up with GELU" : "gate and up with SiLU", act, [&] {
        Doubles expected(m * f);
        for (long i = 0; i < m * f; i++) {
            activation_of(gates[i], gelu, value, slope);
            expected[i] = value * ups[i];
        }
        return expected;
    });

    const Floats dout = numbers(m * k), down = numbers(k * f);
    Floats back(k * f), d_gate_up(m * 2 * f), again = numbers(m * f);
    const Floats first_act = again;
    gate[0] = -300, gate[1] = 300, gate[2] = -88;
    slm_pack_backward(down.data(), k, f, back.data(), 0, k);
    slm_gate_up_backward(dout.data(), m, k, back.data(), f, gate.data(), up.data(), d_gate_up.data(), again.data(), gelu,
                         add);
    again.insert(again.end(), d_gate_up.begin(), d_gate_up.end());
    compare(gelu ? "their gradients with GELU" : "their gradients with SiLU", again, [&] {
        Doubles dact = product(dout, turned(down, k, f), m, k, f);
        for (long i = 0; add && i < m * f; i++) dact[i] += first_act[i];
        Doubles expected(3 * m * f);
        for (long i = 0; i < m * f; i++) {
            activation_of(gate[i], gelu, value, slope);
            expected[i] = value * up[i];
            expected[m * f + i / f * 2 * f + i % f] = dact[i] * up[i] * slope;
            expected[m * f + i / f * 2 * f + f + i % f] = dact[i] * value;
        }
        return expected;
    });
}

static void weight_gradient() {
    const long m = GRADIENT_ROWS + 18, n = STRIPS * MR + NR, k = 2 * NR;
    const Floats dy = numbers(m * n), x = numbers(m * k), old = numbers(n * k);
    Floats grad = old, scratch(slm_weight_gradient_scratch(m, n, k)), bias(n);
    slm_weight_gradient(dy.data(), n, x.data(), k, m, n, k, grad.data(), 1, scratch.data());
    compare("weight gradient", grad, [&] {
        Doubles expected(old.begin(), old.end());
        for (long t = 0; t < m; t++)
            for (long i = 0; i < n; i++)
                for (long j = 0; j < k; j++) expected[i * k + j] += (double)dy[t * n + i] * x[t * k + j];
        return expected;
    });
    slm_bias_gradient(dy.data(), n, m, n, bias.data(), 0);
    compare("bias gradient", bias, [&] {
        Doubles expected(n);
        for (long i = 0; i < m * n; i++) expected[i % n] += dy[i];
        return expected;
    });
}

static void norm() {
    const long m = NORM_PARTS + 3, d = 2 * NR;
    const Floats x = numbers(m * d), weight = numbers(d), dy = numbers(m * d);
    Floats y(m * d), inverse_rms(m);
    slm_rmsnorm(x.data(), m, d, weight.data(), 1e-5f, y.data(), inverse_rms.data());
    auto scale = [&](long row) {
        double sum = 0;
        for (long j = 0; j < d; j++) sum += (double)x[row * d + j] * x[row * d + j];
        return 1 / std::sqrt(sum / d + 1e-5);
    };
    compare("norm", y, [&] {
        Doubles expected(m * d);
        for (long i = 0; i < m * d; i++) expected[i] = x[i] * scale(i / d) * weight[i % d];
        return expected;
    });
    Floats dx(m * d), d_weight(d), partial(slm_rmsnorm_backward_scratch(d));
    slm_rmsnorm_backward(dy.data(), x.data(), inverse_rms.data(), weight.data(), m, d, y.data(), dx.data(), d_weight.data(), 0,
                         partial.data());
    dx.insert(dx.end(), d_weight.begin(), d_weight.end());
    compare("norm backward", dx, [&] {
        Doubles expected(m * d + d);
        for (long i = 0; i < m; i++) {
            const double r = scale(i);
            double dot = 0;
            for (long j = i * d; j < (i + 1) * d; j++) dot += (double)dy[j] * x[j] * weight[j % d];
            for (long j = i * d; j < (i + 1) * d; j++) {
                expected[j] = dy[j] * weight[j % d] * r - x[j] * r * r * r / d * dot + y[j];  // y: the residual
                expected[m * d + j % d] += dy[j] * x[j] * r;
            }
        }
        return expected;
    });
}

static void head(float cap) {
    const long m = LOSS_ROWS + 3, d = 32, v = 4 * NR;
    Floats x = numbers(m * d), w = numbers(v * d), packed(v * d), offsets = numbers(v), logits(m * v), losses(m), again(m), rows(LOSS_ROWS * v);
    Floats slopes(cap ? m * v : 0);
    float* bends = cap ? slopes.data() : nullptr;
    std::vector<int64_t> targets(m);
    for (long i = 0; i < m; i++) targets[i] = i == 2 ? -1 : i * 5 % v;
    slm_pack_forward(w.data(), v, d, packed.data(), 0);
    slm_cross_entropy(x.data(), m, d, packed.data(), v, cap, offsets.data(), targets.data(), 0.5f, 1, logits.data(), bends,
                      losses.data());
    slm_cross_entropy(x.data(), m, d, packed.data(), v, cap, offsets.data(), targets.data(), 0.5f, 0, rows.data(), nullptr,
                      again.data());
    Doubles expected = product(x, w, m, d, v), nats(m), bent(slopes.size());
    for (size_t i = 0; cap && i < expected.size(); i++) {
        const double tanh = std::tanh(expected[i] / cap);
        expected[i] = cap * tanh;
        bent[i] = targets[i / v] < 0 ? 0 : 1 - tanh * tanh;
    }
    for (long i = 0; i < m; i++) {
        double sum = 0;
        for (long j = 0; j < v; j++) sum += std::exp(expected[i * v + j] += offsets[j]);
        if (targets[i] >= 0) nats[i] = std::log(sum) - expected[i * v + targets[i]];
        for (long j = 0; j < v; j++)
            expected[i * v + j] = targets[i] < 0 ? 0 : 0.5 * (std::exp(expected[i * v + j]) / sum - (j == targets[i]));
    }
    compare("cross-entropy", losses, [&] { return nats; });
    compare("cross-entropy without gradients", again, [&] { return nats; });
    compare("gradient in the logits", logits, [&] { return expected; });
    if (cap) compare("slopes of logits", slopes, [&] { return bent; });

    const long words = 1024 + NR, rows_of = MR + 3, width = 2 * NR;  // more words than the product takes at once
    const Floats dlogits = numbers(rows_of * words), table = numbers(words * width);
    Floats back(words * width), dx(rows_of * width);
    slm_pack_backward(table.data(), words, width, back.data(), 0, words);
    slm_head_backward(dlogits.data(), rows_of, words, back.data(), width, dx.data());
    compare("head backward", dx, [&] { return product(dlogits, turned(table, words, width), rows_of, words, width); });
}

struct Attention {
    long B = 2, T = 101, H = 4, K = 2, E = 2 * NR, R = NR;  // half of a head is rotated
    long width = (H + 2 * K) * E;
    Floats cos, sin, norms = numbers(2 * E);  // gains of queries, then of keys
    std::vector<int32_t> starts;
    float cap;

    explicit Attention(float cap) : cos(T * R), sin(T * R), starts(B * T), cap(cap) {
        for (long t = 0; t < T; t++)
            for (long e = 0; e < R; e++) {
                const double angle = t * std::pow(100.0, -(double)(e % (R / 2)) / (R / 2));
                cos[t * R + e] = (float)std::cos(angle);
                sin[t * R + e] = (float)std::sin(angle);
            }
        for (long i = 0; i < B * T; i++) starts[i] = i % T < 7 ? 0 : 7;  // two documents
    }

    Doubles rotated(const double* x, const Doubles& norm, long t) const {
        double sum = 0;
        for (long e = 0; e < E; e++) sum += x[e] * x[e];
        const double scale = 1 / std::sqrt(sum / E + 1e-5);
        Doubles y(E), z(E);
        for (long e = 0; e < E; e++) y[e] = x[e] * scale * norm[e];
        for (long e = 0; e < E; e++) {
            const double other = e < R / 2 ? -y[e + R / 2] : y[e - R / 2];
            z[e] = e < R ? y[e] * cos[t * R + e] + other * sin[t * R + e] : y[e];
        }
        return z;
    }

    Doubles forward(const Doubles& qkv, const Doubles& norms) const {
        const Doubles q_norm(norms.begin(), norms.begin() + E), k_norm(norms.begin() + E, norms.end());
        Doubles out(B * T * H * E);
        for (long b = 0; b < B; b++)
            for (long h = 0; h < H; h++) {
                const long k = H + h / (H / K);
                std::vector<Doubles> keys;
                for (long t = 0; t < T; t++) keys.push_back(rotated(&qkv[(b * T + t) * width + k * E], k_norm, t));
                for (long t = 0; t < T; t++) {
                    const Doubles q = rotated(&qkv[(b * T + t) * width + h * E], q_norm, t);
                    double total = 0;
                    double* o = &out[(b * T + t) * H * E + h * E];
                    for (long s = starts[b * T + t]; s <= t; s++) {
                        double score = 0;
                        for (long e = 0; e < E; e++) score += q[e] * keys[s][e];
                        score /= std::sqrt((double)E);
                        const double p = std::exp(cap ? cap * std::tanh(score / cap) : score);
                        total += p;
                        for (long e = 0; e < E; e++) o[e] += p * qkv[(b * T + s) * width + (k + K) * E + e];
                    }
                    for (long e = 0; e < E; e++) o[e] /= total;
                }
            }
        return out;
    }
};

static void attention(float cap) {
    const Attention a(cap);
    const long n_out = a.B * a.T * a.H * a.E;
    const Floats qkv = numbers(a.B * a.T * a.width), dout = numbers(n_out);
    Floats out(n_out), lse(a.B * a.H * a.T), scratch(slm_attention_scratch(a.B, a.T, a.K, a.E));
    failed |= slm_attention_forward(qkv.data(), a.B, a.T, a.H, a.K, a.E, a.R, a.cos.data(), a.sin.data(), a.norms.data(),
                                    a.norms.data() + a.E, 1e-5f, a.cap, a.starts.data(), out.data(), lse.data(), scratch.data());
    const Doubles exact(qkv.begin(), qkv.end()), gains(a.norms.begin(), a.norms.end());
    compare("attention", out, [&] { return a.forward(exact, gains); });

    Floats dqkv(qkv.size()), d_norms(2 * a.E), heads(slm_attention_backward_scratch(a.B, a.T, a.H, a.E));
    Floats norms(2 * a.B * a.H * a.E);
    failed |= slm_attention_backward(qkv.data(), a.B, a.T, a.H, a.K, a.E, a.R, a.cos.data(), a.sin.data(), a.norms.data(),
                                     a.norms.data() + a.E, 1e-5f, a.cap, a.starts.data(), out.data(), lse.data(),
                                     dout.data(), dqkv.data(), d_norms.data(), heads.data(), norms.data());
    dqkv.insert(dqkv.end(), d_norms.begin(), d_norms.end());
    // Slopes in four directions, next to central differences: of queries, of keys, of values and of both norms' gains.
    Floats slopes;
    std::vector<Floats> directions;
    const long n = (long)qkv.size(), from[] = {0, a.H * a.E, (a.H + a.K) * a.E, a.width};
    for (int part = 0; part < 4; part++) {
        Floats direction(dqkv.size());
        double slope = 0;
        for (size_t i = 0; i < dqkv.size(); i++) {
            const long column = (long)i % a.width;
            if ((long)i >= n ? part == 3 : part < 3 && column >= from[part] && column < from[part + 1]) direction[i] = number();
            slope += direction[i] * (double)dqkv[i];
        }
        directions.push_back(direction);
        slopes.push_back((float)slope);
    }
    compare("attention backward", slopes, [&] {
        Doubles expected;
        for (const Floats& direction : directions) {
            const double step = 1e-5;
            Doubles high, low;
            for (double sign : {1.0, -1.0}) {
                Doubles moved = exact, norms = gains;
                for (long i = 0; i < n; i++) moved[i] += sign * step * direction[i];
                for (long e = 0; e < 2 * a.E; e++) norms[e] += sign * step * direction[n + e];
                (sign > 0 ? high : low) = a.forward(moved, norms);
            }
            double difference = 0;
            for (long i = 0; i < n_out; i++) difference += dout[i] * (high[i] - low[i]) / (2 * step);
            expected.push_back(difference);
        }
        return expected;
    }, dqkv);
}

static void update() {
    const long n = 3 * 8192 + 5;
    // As the numbers of slm_adamw: two factors, what is kept, 1 - beta1, beta2, 1 - beta2, correction, epsilon, step.
    const Floats c = {0.5f, 3.0f, 0.99f, 0.1f, 0.95f, 0.05f, 0.3f, 1e-6f, -0.02f}, gradient = numbers(n), first = numbers(n);
    Floats weight = first, mean = numbers(n), square = numbers(n);
    for (float& each : square) each = each * each;
    const Floats old_mean = mean, old_square = square;
    const int64_t tensors[5] = {(int64_t)weight.data(), (int64_t)gradient.data(), (int64_t)mean.data(), (int64_t)square.data(), n};
    slm_adamw(tensors, 1, c.data());
    Doubles expected(n);
    for (long i = 0; i < n; i++) {
        const double g = gradient[i] * 1.5, m = 0.9 * old_mean[i] + 0.1 * g, v = 0.95 * old_square[i] + 0.05 * g * g;
        expected[i] = 0.99 * first[i] - 0.02 * m / (std::sqrt(v) / 0.3 + 1e-6);
    }
    compare("update", weight, [&] { return expected; });
    const int64_t summed[2] = {(int64_t)gradient.data(), n};
    compare("sum of squares", {(float)slm_sum_of_squares(summed, 1)}, [&] {
        double sum = 0;
        for (float g : gradient) sum += (double)g * g;
        return Doubles{sum};
    });
}

int main() {
    printf("%ld lanes, tiles of %ld x %ld\n", W, MR, NR);
    for (int threads : {2, 1, 3}) {
        omp_set_num_threads(threads);
        state = 7;
        results = 0;
        functions();
        linear();
        gate_up(0);
        gate_up(1);
        weight_gradient();
        norm();
        for (float cap : {0.0f, 1.5f}) {  // with soft-caps that bend what they cap
            kind = cap ? ", soft-capped" : "";
            head(cap);
            attention(cap);
        }
        kind = "";
        update();
        turn++;
    }
    return failed;
}
