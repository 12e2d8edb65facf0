// Picks a token from a row of logits: few candidates are found in one reading, and llama.cpp's own samplers choose
// among these. See slm/llama/pick.py, which fills `Chain` and says what the answers mean.
//
// The vocabulary is read in blocks whose highest entries are kept: the k-th highest of these is at most the k-th
// highest of all, so that only blocks above it can hold one of the k.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int LANES = 16;
constexpr int BLOCK = 64;
constexpr int MOST = 4096;     // candidates; more are left to the caller
constexpr int MOST_BLOCKS = 1 << 14;
constexpr int GROUPS = 224;    // about the square root of a vocabulary, and a multiple of LANES
constexpr int NUCLEUS = 256;

typedef float V __attribute__((vector_size(4 * LANES)));
typedef int32_t W __attribute__((vector_size(4 * LANES)));

// llama.cpp's llama_token_data and llama_token_data_array.
struct Token {
    int32_t id;
    float logit;
    float p;
};
struct Tokens {
    Token* data;
    size_t size;
    int64_t selected;
    bool sorted;
};
typedef void (*Apply)(void* sampler, Tokens* tokens);

inline V load(const float* at) {
    V v;
    std::memcpy(&v, at, sizeof v);
    return v;
}

inline float highest_of(V v) {
    float m = v[0];
    for (int i = 1; i < LANES; ++i) m = v[i] > m ? v[i] : m;
    return m;
}

// exp of x <= 0, to 2 units in the last place; 0 below -87.
inline V exp_of(V x) {
    const W tiny = x < -87.0f;
    x = tiny ? V{} - 87.0f : x;
    const V shift = V{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    const V n = (x * 1.44269504f + shift) - shift;
    const V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    V y = V{} + 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    W bits;
    std::memcpy(&bits, &y, sizeof bits);
    bits += __builtin_convertvector(n, W) << 23;
    std::memcpy(&y, &bits, sizeof y);
    return tiny ? V{} : y;
}

struct Row {
    const float* x;
    int n;
    int n_blocks;                // the last one may be shorter
    float highest;
    bool numbers;                // false: there is a NaN
    float block[MOST_BLOCKS];    // each block's highest

    void read(const float* row, int n_vocab) {
        x = row;
        n = n_vocab;
        n_blocks = (n + BLOCK - 1) / BLOCK;
        W bad = {};
        bool tail_bad = false;
        highest = -INFINITY;
        for (int b = 0; b < n_blocks; ++b) {
            const float* at = x + b * BLOCK;
            float m;
            if ((b + 1) * BLOCK <= n) {
                V a = load(at);
                bad |= a != a;
                for (int i = LANES; i < BLOCK; i += LANES) {
                    const V v = load(at + i);
                    bad |= v != v;
                    a = v > a ? v : a;
                }
                m = highest_of(a);
            } else {
                m = -INFINITY;
                for (int i = 0; i < n - b * BLOCK; ++i) {
                    tail_bad |= at[i] != at[i];
                    m = at[i] > m ? at[i] : m;
                }
            }
            block[b] = m;
            highest = m > highest ? m : highest;
        }
        int any = tail_bad;
        for (int i = 0; i < LANES; ++i) any |= bad[i];
        numbers = !any;
    }

    // A bound that at least k entries reach; -inf where there may be fewer.
    float bound(int k, float* scratch) const {
        if (k < 1 || k > n_blocks / 2) return -INFINITY;
        std::memcpy(scratch, block, n_blocks * sizeof(float));
        std::nth_element(scratch, scratch + (k - 1), scratch + n_blocks, [](float a, float b) { return a > b; });
        return scratch[k - 1];
    }

    // Entries that reach the bound, by id; -1 where they are too many.
    int collect(float bound, Token* out) const {
        int found = 0;
        for (int b = 0; b < n_blocks; ++b) {
            if (!(block[b] >= bound)) continue;
            const int stop = std::min(n, (b + 1) * BLOCK);
            for (int i = b * BLOCK; i < stop; ++i) {
                if (x[i] >= bound) {
                    if (found == MOST) return -1;
                    out[found++] = {i, x[i], 0.0f};
                }
            }
        }
        return found;
    }
};

enum Kind { GREEDY, TOP_K, TOP_P, MIN_P, TEMPERATURE };

}  // namespace

extern "C" {

struct Chain {
    Apply apply;            // llama_sampler_apply
    void** samplers;        // the chain's, the bias left out
    int32_t n_samplers;
    int32_t kind;           // of the first sampler
    float parameter;        // its k, p or temperature
    int32_t n_bias;
    const int32_t* bias_ids;
    const float* bias;      // added to the logits of these
};

// The answers that are no token.
enum { NOT_NUMBERS = -1, LOOK_AT_ALL = -2, NOTHING_FITS = -3 };

}  // extern "C"

namespace {

int choose(const Chain& chain, int from, Token* tokens, int n) {
    Tokens array = {tokens, static_cast<size_t>(n), -1, false};
    for (int i = from; i < chain.n_samplers; ++i) chain.apply(chain.samplers[i], &array);
    if (array.selected < 0 || array.selected >= static_cast<int64_t>(array.size)) return LOOK_AT_ALL;
    return array.data[array.selected].id;
}

// The fewest tokens, highest first, that have the probability p together.
int nucleus(const Row& row, float p, Token* tokens, float* scratch) {
    const float bound = row.bound(NUCLEUS, scratch);
    if (bound == -INFINITY) return -1;
    int n = row.collect(bound, tokens);
    if (n < 0) return -1;
    double total = 0.0;
    const int whole = row.n / LANES * LANES;
    for (int i = 0; i < whole;) {
        V sum = {};
        // Not too many to one sum: they are single precision.
        for (const int stop = std::min(whole, i + 64 * LANES); i < stop; i += LANES) {
            sum += exp_of(load(row.x + i) - row.highest);
        }
        for (int lane = 0; lane < LANES; ++lane) total += sum[lane];
    }
    for (int i = whole; i < row.n; ++i) total += std::exp(row.x[i] - row.highest);
    std::sort(tokens, tokens + n, [](const Token& a, const Token& b) {
        return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
    });
    n = std::min(n, NUCLEUS);
    double sum = 0.0;
    for (int i = 0; i < n; ++i) {
        sum += std::exp(tokens[i].logit - row.highest);
        if (sum >= p * total) return i + 1;
    }
    return -1;
}

// Draws a group of tokens, then one of its members: token t is in group t mod GROUPS.
int draw(const Chain& chain, const Row& row, Token* tokens) {
    V sums[GROUPS / LANES] = {};
    int i = 0;
    for (; i + GROUPS <= row.n; i += GROUPS) {
        for (int g = 0; g < GROUPS / LANES; ++g) {
            sums[g] += exp_of((load(row.x + i + g * LANES) - row.highest) / chain.parameter);
        }
    }
    float parts[GROUPS];
    std::memcpy(parts, sums, sizeof parts);
    for (int g = 0; i < row.n; ++i, ++g) parts[g] += std::exp((row.x[i] - row.highest) / chain.parameter);
    int n = 0;
    for (int g = 0; g < GROUPS; ++g) {
        if (parts[g] > 0.0f) tokens[n++] = {g, std::log(parts[g]), 0.0f};
    }
    const int group = choose(chain, 1, tokens, n);
    if (group < 0) return group;
    n = 0;
    for (int t = group; t < row.n; t += GROUPS) {
        if (row.x[t] > -INFINITY) {
            if (n == MOST) return LOOK_AT_ALL;
            tokens[n++] = {t, row.x[t], 0.0f};
        }
    }
    return choose(chain, 0, tokens, n);
}

// Not on the stack, which is a thread's: the engine picks in one.
static thread_local Row row;
static thread_local Token tokens[MOST];
static thread_local float scratch[MOST_BLOCKS];

inline bool allowed(const uint32_t* mask, int i) { return mask[i >> 5] >> (i & 31) & 1; }

int n_allowed(const uint32_t* mask, int n_vocab) {
    int n = 0;
    for (int w = 0; w < n_vocab >> 5; ++w) n += __builtin_popcount(mask[w]);
    for (int i = n_vocab & ~31; i < n_vocab; ++i) n += allowed(mask, i);
    return n;
}

// Few tokens are allowed: the whole chain chooses among them.
int pick_among(const Chain& chain, const float* x, int n_vocab, const uint32_t* mask) {
    int n = 0;
    for (int w = 0; w <= (n_vocab - 1) >> 5; ++w) {
        for (uint32_t bits = mask[w]; bits; bits &= bits - 1) {
            const int i = w * 32 + __builtin_ctz(bits);
            if (i >= n_vocab) break;
            if (x[i] != x[i]) return NOT_NUMBERS;
            if (x[i] > -INFINITY) tokens[n++] = {i, x[i], 0.0f};
        }
    }
    return n > 0 ? choose(chain, 0, tokens, n) : NOTHING_FITS;
}

// A copy of the row in which what the mask forbids is -inf.
const float* masked(const float* x, int n_vocab, const uint32_t* mask) {
    static thread_local std::vector<float> copy;
    copy.resize(n_vocab);
    float* to = copy.data();
    for (int i = 0; i < n_vocab; i += 32) {
        const int stop = std::min(n_vocab - i, 32);
        const uint32_t bits = mask[i >> 5];
        for (int j = 0; j < stop; ++j) to[i + j] = bits >> j & 1 ? x[i + j] : -INFINITY;
    }
    return to;
}

int pick(const Chain& chain, const float* x, int n_vocab, const uint32_t* mask) {
    if (mask) {
        if (n_allowed(mask, n_vocab) <= MOST) return pick_among(chain, x, n_vocab, mask);
        x = masked(x, n_vocab, mask);
    }
    row.read(x, n_vocab);
    if (!row.numbers) return NOT_NUMBERS;
    if (mask && row.highest == -INFINITY) return NOTHING_FITS;
    if (!std::isfinite(row.highest)) return LOOK_AT_ALL;
    int n = -1;
    switch (chain.kind) {
        case GREEDY: {
            const int b = static_cast<int>(std::find(row.block, row.block + row.n_blocks, row.highest) - row.block);
            return static_cast<int>(std::find(x + b * BLOCK, x + n_vocab, row.highest) - x);
        }
        case TOP_K: {
            const float bound = row.bound(static_cast<int>(chain.parameter), scratch);
            if (bound > -INFINITY) n = row.collect(bound, tokens);
            return n > 0 ? choose(chain, 0, tokens, n) : LOOK_AT_ALL;
        }
        case TOP_P:
            n = nucleus(row, chain.parameter, tokens, scratch);
            return n > 0 ? choose(chain, 1, tokens, n) : LOOK_AT_ALL;
        case MIN_P:
            // A little more than is kept: the sampler itself decides.
            n = row.collect(row.highest + std::log(chain.parameter) - 1e-3f, tokens);
            return n > 0 ? choose(chain, 0, tokens, n) : LOOK_AT_ALL;
        case TEMPERATURE:
            return draw(chain, row, tokens);
    }
    return LOOK_AT_ALL;
}

}  // namespace

extern "C" {

// row: float32 [n_vocab], as it was when this returns. mask: null, or a bit for each token, the lowest first; only the
// tokens whose bits are set are picked. The token, or one of the answers above.
int slm_pick(const Chain* chain, float* row, int n_vocab, const uint32_t* mask) {
    if (n_vocab < 1 || n_vocab > MOST_BLOCKS * BLOCK) return LOOK_AT_ALL;
    if (chain->n_bias == 0) return pick(*chain, row, n_vocab, mask);
    if (chain->n_bias > MOST) return LOOK_AT_ALL;
    static thread_local float own[MOST];
    for (int i = 0; i < chain->n_bias; ++i) own[i] = row[chain->bias_ids[i]];
    for (int i = 0; i < chain->n_bias; ++i) row[chain->bias_ids[i]] += chain->bias[i];
    const int token = pick(*chain, row, n_vocab, mask);
    for (int i = 0; i < chain->n_bias; ++i) row[chain->bias_ids[i]] = own[i];
    return token;
}

}  // extern "C"
