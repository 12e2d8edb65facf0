// The f32 training kernels against plain loops in double precision, as a program without PyTorch: it can be compiled for
// another processor and run by an emulator. Prints a line for each kernel, and ends with 1 where one is wrong.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "f32/sizes.h"

extern "C" {
void slm_pack_forward(const float*, long, long, float*, int);
void slm_pack_backward(const float*, long, long, float*, long, long);
void slm_linear(const float*, long, long, const float*, long, const float*, float*);
void slm_gate_up(const float*, long, long, const float*, long, float*, float*, float*, int);
void slm_weight_gradient(const float*, long, const float*, long, long, long, long, float*, int, float*);
long slm_weight_gradient_scratch(long, long, long);
void slm_rmsnorm(const float*, long, long, const float*, float, float*, float*);
void slm_cross_entropy(const float*, long, long, const float*, long, const int64_t*, float, int, float*, float*);
long slm_attention_scratch(long, long, long, long);
long slm_attention_backward_scratch(long, long, long, long);
int slm_attention_forward(const float*, long, long, long, long, long, const float*, const float*, const float*, const float*,
                          float, const int32_t*, float*, float*, float*);
int slm_attention_backward(const float*, long, long, long, long, long, const float*, const float*, const float*, const float*,
                           float, const int32_t*, const float*, const float*, const float*, float*, float*, float*, float*);
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
template <class Ours, class Theirs>
static void compare(const char* name, const Ours& ours, const Theirs& theirs) {
    double apart = 0, size = 0;
    for (size_t i = 0; i < theirs.size(); i++) {
        apart += ((double)ours[i] - theirs[i]) * ((double)ours[i] - theirs[i]);
        size += (double)theirs[i] * theirs[i];
    }
    const double error = std::sqrt(apart / size);
    const bool right = error < 1e-5;  // false for NaN
    printf("%s %.1e%s\n", name, error, right ? "" : " WRONG");
    failed |= !right;
}

// y [m, n] = x [m, k] w [n, k]^T.
static Doubles product(const Floats& x, const Floats& w, long m, long k, long n) {
    Doubles y(m * n);
    for (long i = 0; i < m; i++)
        for (long j = 0; j < n; j++)
            for (long e = 0; e < k; e++) y[i * n + j] += (double)x[i * k + e] * w[j * k + e];
    return y;
}

static void linear() {
    const long m = MR + 5, k = 72, n = 3 * NR;
    const Floats x = numbers(m * k), w = numbers(n * k), residual = numbers(m * n);
    Floats packed(n * k), y(m * n);
    slm_pack_forward(w.data(), n, k, packed.data(), 0);
    slm_linear(x.data(), m, k, packed.data(), n, residual.data(), y.data());
    Doubles expected = product(x, w, m, k, n);
    for (size_t i = 0; i < expected.size(); i++) expected[i] += residual[i];
    compare("linear", y, expected);

    const long d = 2 * NR;  // dx = dy w, for w [n, d]
    const Floats dy = numbers(m * n), v = numbers(n * d);
    Floats dx(m * d), turned(d * n), back(n * d);
    for (long i = 0; i < n; i++)
        for (long j = 0; j < d; j++) turned[j * n + i] = v[i * d + j];
    slm_pack_backward(v.data(), n, d, back.data(), 0, n);
    slm_linear(dy.data(), m, n, back.data(), d, nullptr, dx.data());
    compare("linear backward", dx, product(dy, turned, m, n, d));
}

static void gate_up() {
    const long m = MR + 1, k = 40, f = 2 * NR;
    const Floats x = numbers(m * k), g = numbers(f * k), u = numbers(f * k);
    Floats packed(2 * f * k), gate(m * f), up(m * f), act(m * f);
    slm_pack_forward(g.data(), f, k, packed.data(), 1);
    slm_pack_forward(u.data(), f, k, packed.data(), 2);
    slm_gate_up(x.data(), m, k, packed.data(), f, gate.data(), up.data(), act.data(), 0);
    Doubles expected = product(x, g, m, k, f);
    const Doubles ups = product(x, u, m, k, f);
    for (size_t i = 0; i < expected.size(); i++) expected[i] *= ups[i] / (1 + std::exp(-expected[i]));
    compare("gate and up with SiLU", act, expected);
}

static void weight_gradient() {
    const long m = 37, n = MR + NR, k = 2 * NR;
    const Floats dy = numbers(m * n), x = numbers(m * k);
    Floats grad = numbers(n * k), scratch(slm_weight_gradient_scratch(m, n, k));
    Doubles expected(grad.begin(), grad.end());
    for (long i = 0; i < n; i++)
        for (long j = 0; j < k; j++)
            for (long t = 0; t < m; t++) expected[i * k + j] += (double)dy[t * n + i] * x[t * k + j];
    slm_weight_gradient(dy.data(), n, x.data(), k, m, n, k, grad.data(), 1, scratch.data());
    compare("weight gradient", grad, expected);
}

static void norm() {
    const long m = 3, d = 2 * NR;
    const Floats x = numbers(m * d), weight = numbers(d);
    Floats y(m * d);
    slm_rmsnorm(x.data(), m, d, weight.data(), 1e-5f, y.data(), nullptr);
    Doubles expected(m * d);
    for (long i = 0; i < m; i++) {
        double sum = 0;
        for (long j = 0; j < d; j++) sum += (double)x[i * d + j] * x[i * d + j];
        for (long j = 0; j < d; j++) expected[i * d + j] = x[i * d + j] / std::sqrt(sum / d + 1e-5) * weight[j];
    }
    compare("norm", y, expected);
}

static void cross_entropy() {
    const long m = MR + 3, d = 32, v = 4 * NR;
    Floats x = numbers(m * d), w = numbers(v * d), packed(v * d), logits(m * v), losses(m);
    std::vector<int64_t> targets(m);
    for (long i = 0; i < m; i++) targets[i] = i == 2 ? -1 : i * 5 % v;
    slm_pack_forward(w.data(), v, d, packed.data(), 0);
    slm_cross_entropy(x.data(), m, d, packed.data(), v, targets.data(), 0.5f, 1, logits.data(), losses.data());
    Doubles expected = product(x, w, m, d, v), nats(m);
    for (long i = 0; i < m; i++) {
        double sum = 0;
        for (long j = 0; j < v; j++) sum += std::exp(expected[i * v + j]);
        if (targets[i] >= 0) nats[i] = std::log(sum) - expected[i * v + targets[i]];
        for (long j = 0; j < v; j++)
            expected[i * v + j] = targets[i] < 0 ? 0 : 0.5 * (std::exp(expected[i * v + j]) / sum - (j == targets[i]));
    }
    compare("cross-entropy", losses, nats);
    compare("gradient in the logits", logits, expected);
}

struct Attention {
    long B = 2, T = 2 * NR + 5, H = 4, K = 2, E = 2 * NR;
    long width = (H + 2 * K) * E;
    Floats cos, sin, q_norm = numbers(E), k_norm = numbers(E);
    std::vector<int32_t> starts;

    Attention() : cos(T * E), sin(T * E), starts(B * T) {
        for (long t = 0; t < T; t++)
            for (long e = 0; e < E; e++) {
                const double angle = t * std::pow(100.0, -(double)(e % (E / 2)) / (E / 2));
                cos[t * E + e] = (float)std::cos(angle);
                sin[t * E + e] = (float)std::sin(angle);
            }
        for (long i = 0; i < B * T; i++) starts[i] = i % T < 7 ? 0 : 7;  // two documents
    }

    Doubles rotated(const double* x, const Floats& norm, long t) const {
        double sum = 0;
        for (long e = 0; e < E; e++) sum += x[e] * x[e];
        const double scale = 1 / std::sqrt(sum / E + 1e-5);
        Doubles y(E), z(E);
        for (long e = 0; e < E; e++) y[e] = x[e] * scale * norm[e];
        for (long e = 0; e < E; e++) {
            const double other = e < E / 2 ? -y[e + E / 2] : y[e - E / 2];
            z[e] = y[e] * cos[t * E + e] + other * sin[t * E + e];
        }
        return z;
    }

    Doubles forward(const Doubles& qkv) const {
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
                        const double p = std::exp(score / std::sqrt((double)E));
                        total += p;
                        for (long e = 0; e < E; e++) o[e] += p * qkv[(b * T + s) * width + (k + K) * E + e];
                    }
                    for (long e = 0; e < E; e++) o[e] /= total;
                }
            }
        return out;
    }
};

static void attention() {
    const Attention a;
    const long n_out = a.B * a.T * a.H * a.E;
    const Floats qkv = numbers(a.B * a.T * a.width), dout = numbers(n_out);
    Floats out(n_out), lse(a.B * a.H * a.T), scratch(slm_attention_scratch(a.B, a.T, a.K, a.E));
    failed |= slm_attention_forward(qkv.data(), a.B, a.T, a.H, a.K, a.E, a.cos.data(), a.sin.data(), a.q_norm.data(),
                                    a.k_norm.data(), 1e-5f, a.starts.data(), out.data(), lse.data(), scratch.data());
    const Doubles exact(qkv.begin(), qkv.end());
    compare("attention", out, a.forward(exact));

    Floats dqkv(qkv.size()), d_norms(2 * a.E), heads(slm_attention_backward_scratch(a.B, a.T, a.H, a.E));
    Floats norms(2 * a.B * a.H * a.E);
    failed |= slm_attention_backward(qkv.data(), a.B, a.T, a.H, a.K, a.E, a.cos.data(), a.sin.data(), a.q_norm.data(),
                                     a.k_norm.data(), 1e-5f, a.starts.data(), out.data(), lse.data(), dout.data(),
                                     dqkv.data(), d_norms.data(), heads.data(), norms.data());
    // Slopes in three directions, next to central differences: of queries, of keys and of values.
    Doubles ours, theirs;
    const long from[] = {0, a.H * a.E, (a.H + a.K) * a.E, a.width};
    for (int part = 0; part < 3; part++) {
        const double step = 1e-5;
        Doubles up = exact, down = exact;
        double slope = 0;
        for (size_t i = 0; i < exact.size(); i++) {
            const long column = (long)(i % a.width);
            const double direction = column >= from[part] && column < from[part + 1] ? number() : 0;
            up[i] += step * direction;
            down[i] -= step * direction;
            slope += direction * dqkv[i];
        }
        const Doubles high = a.forward(up), low = a.forward(down);
        double difference = 0;
        for (long i = 0; i < n_out; i++) difference += dout[i] * (high[i] - low[i]) / (2 * step);
        ours.push_back(slope);
        theirs.push_back(difference);
    }
    compare("attention backward", ours, theirs);
}

int main() {
    printf("%ld lanes\n", W);
    linear();
    gate_up();
    weight_gradient();
    norm();
    cross_entropy();
    attention();
    return failed;
}
