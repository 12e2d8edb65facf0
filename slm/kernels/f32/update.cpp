// An update of the weights: AdamW in one pass over weights, gradients and moments, and the squares of gradients that clipping
// needs before. The bf16 kernels have it too: weights, gradients and moments are f32 everywhere.
//
// The sums are rounded as in torch's fused AdamW for the CPU, to the bit, so that a run may change between the two: no product
// and sum become one operation but those that are written so.
#ifdef __clang__
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif
#include <vector>

#include "vec.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {

constexpr long BLOCK = 8192;  // values that a thread takes at once, and whose squares are summed in f32

// a b + c, rounded once.
INLINE vec fused(vec a, vec b, vec c) {
#if defined(SLM_NEON)
    return vfmaq_f32(c, a, b);
#elif defined(__AVX512F__) && SLM_LANES == 16
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__) && SLM_LANES == 8
    return __builtin_ia32_vfmaddps256(a, b, c);
#else
    for (long i = 0; i < W; i++) c[i] = std::fma(a[i], b[i], c[i]);
    return c;
#endif
}

// What an update reads besides the tensors, in this order in an array.
struct Numbers {
    float first, second;         // factors of the gradient, one after the other
    float keep;                  // of a weight: 1 - rate * decay
    float mean_share;            // 1 - beta1
    float beta2, square_share;   // and 1 - beta2
    float correction;            // the root of 1 - beta2^t
    float epsilon;
    float step;                  // - rate / (1 - beta1^t)
};

struct Vectors {
    vec first, second, keep, mean_share, mean_rest, beta2, square_share, correction, epsilon, step;
    bool large;  // the mean moves from the gradient's side, as torch's lerp does where the share is half or more

    INLINE explicit Vectors(const Numbers& n)
        : first(all(n.first)), second(all(n.second)), keep(all(n.keep)), mean_share(all(n.mean_share)),
          mean_rest(all(n.mean_share) - all(1.0f)), beta2(all(n.beta2)), square_share(all(n.square_share)),
          correction(all(n.correction)), epsilon(all(n.epsilon)), step(all(n.step)), large(std::fabs(n.mean_share) >= 0.5f) {}
};

INLINE void update(const Vectors& c, float* weight, const float* gradient, float* mean, float* square) {
    const vec g = load(gradient) * c.first * c.second, before = load(mean);
    const vec m = c.large ? fused(c.mean_rest, g - before, g) : fused(c.mean_share, g - before, before);
    const vec v = fused(c.square_share * g, g, load(square) * c.beta2);
    store(mean, m);
    store(square, v);
    store(weight, load(weight) * c.keep + c.step * m / (root(v) / c.correction + c.epsilon));
}

// The same of fewer values than a vector has.
INLINE void update_some(const Vectors& c, long n, float* weight, const float* gradient, float* mean, float* square) {
    float own[4][W] = {};
    memcpy(own[0], weight, n * 4), memcpy(own[1], gradient, n * 4), memcpy(own[2], mean, n * 4), memcpy(own[3], square, n * 4);
    update(c, own[0], own[1], own[2], own[3]);
    memcpy(weight, own[0], n * 4), memcpy(mean, own[2], n * 4), memcpy(square, own[3], n * 4);
}

struct Updated {
    float *weight, *gradient, *mean, *square;
    int64_t n;
};
struct Summed {
    const float* gradient;
    int64_t n;
};

}  // namespace

extern "C" {

// AdamW (Loshchilov and Hutter 2019) on `count` tensors: addresses of weights, gradients and both moments, and their number
// of values, five int64 a tensor. numbers: those of `Numbers`, the same for all.
void slm_adamw(const Updated* tensors, long count, const Numbers* numbers) {
    const Vectors c(*numbers);
#pragma omp parallel
    for (long i = 0; i < count; i++) {
        const Updated t = tensors[i];
#pragma omp for schedule(dynamic) nowait
        for (long start = 0; start < t.n; start += BLOCK) {
            const long end = min_of(t.n, start + BLOCK);
            long k = start;
            for (; k + W <= end; k += W) update(c, t.weight + k, t.gradient + k, t.mean + k, t.square + k);
            if (k < end) update_some(c, end - k, t.weight + k, t.gradient + k, t.mean + k, t.square + k);
        }
    }
}

// The sum of the squares of `count` tensors: address and number of values, two int64 a tensor. It does not depend on the
// number of threads.
double slm_sum_of_squares(const Summed* tensors, long count) {
    static thread_local std::vector<double> sums;  // one for each block of a tensor
    long blocks = 0;
    for (long i = 0; i < count; i++) blocks += ceil_div(tensors[i].n, BLOCK);
    sums.resize(blocks);
    double* const first = sums.data();
#pragma omp parallel
    {
        double* own = first;
        for (long i = 0; i < count; i++) {
            const Summed t = tensors[i];
#pragma omp for schedule(static) nowait
            for (long start = 0; start < t.n; start += BLOCK) {
                const float* g = t.gradient + start;
                const long n = min_of(BLOCK, t.n - start);
                vec s[4] = {};
                long k = 0;
                for (; k + 4 * W <= n; k += 4 * W)
                    unrolled<4>([&](auto j) ALWAYS { s[j] = fused(load(g + k + j * W), load(g + k + j * W), s[j]); });
                double sum = 0;
                for (; k < n; k++) sum += (double)g[k] * g[k];
                own[start / BLOCK] = sum + sum_of((s[0] + s[1]) + (s[2] + s[3]));
            }
            own += ceil_div(t.n, BLOCK);
        }
    }
    double sum = 0;
    for (long i = 0; i < blocks; i++) sum += first[i];
    return sum;
}

}  // extern "C"
