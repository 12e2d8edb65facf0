// What this processor gives at most: multiply-adds on registers alone, and reads of an array that no cache holds.
//
// Threads are the standard library's, so that the library needs no OpenMP and the process that loads it no torch.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <vector>
#ifdef __linux__
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif
#ifdef __AMX_BF16__
#include "bf16/amx.h"
#endif

namespace {

#if defined(__AVX512F__)
constexpr long W = 16;  // lanes of an f32 vector
#elif defined(__AVX__)
constexpr long W = 8;
#else
constexpr long W = 4;
#endif
typedef float vec __attribute__((vector_size(4 * W)));

constexpr int WINDOWS = 20;        // short measurements, of which the best counts: other programs only take time away
constexpr long STEPS = 4096;       // turns of a register loop between two looks at the clock
constexpr long PORTION = 1 << 21;  // floats of an array that are read between two looks at the clock (8 MiB)
#ifdef __aarch64__
constexpr int SUMS = 24;  // independent sums: more than latency times multiply-adds per cycle, fewer than registers
#else
constexpr int SUMS = 12;
#endif

double seconds_of(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

// The best rate of all threads together: work(thread) does a portion and returns how much that was. `clock` is a thread's
// processor time, which other programs do not touch, or the time of day.
template <class Work>
double best_rate(int threads, double seconds, clockid_t clock, Work work) {
    const double window = seconds / WINDOWS;
    double best = 0;
    for (int i = 0; i < WINDOWS; i++) {
        std::atomic<int> ready{0};
        std::vector<double> rates(threads);
        auto one = [&](int thread) {
            ready++;
            while (ready < threads) std::this_thread::yield();
            const double start = seconds_of(clock), latest = seconds_of(CLOCK_MONOTONIC) + 4 * window;
            double done = 0, taken = 0;
            do {
                done += work(thread);
                taken = seconds_of(clock) - start;
            } while (taken < window && seconds_of(CLOCK_MONOTONIC) < latest);
            rates[thread] = done / taken;
        };
        std::vector<std::thread> others;
        for (int thread = 1; thread < threads; thread++) others.emplace_back(one, thread);
        one(0);
        for (auto& other : others) other.join();
        double sum = 0;
        for (double rate : rates) sum += rate;
        best = sum > best ? sum : best;
    }
    return best;
}

// Each sum is multiplied and added to, so that no turn of the loop can be left out.
double f32_portion() {
    static volatile float factor = 0.999f, term = 0.001f, sink;
    const vec a = vec{} + factor, b = vec{} + term;
    vec sums[SUMS];
#pragma GCC unroll 24
    for (int i = 0; i < SUMS; i++) sums[i] = vec{} + (float)i;
    for (long step = 0; step < STEPS; step++) {
#pragma GCC unroll 24
        for (int i = 0; i < SUMS; i++) sums[i] = sums[i] * a + b;
    }
    vec total = {};
#pragma GCC unroll 24
    for (int i = 0; i < SUMS; i++) total += sums[i];
    for (int i = 0; i < W; i++) sink = total[i];
    return 2.0 * W * SUMS * STEPS;
}

#ifdef __AVX512BF16__
double avx512bf16_portion() {
    static volatile int pair = 0x3c003c00;  // two bf16 of 2^-7
    static volatile float sink;
    const __m512bh a = (__m512bh)_mm512_set1_epi32(pair), b = (__m512bh)_mm512_set1_epi32(pair + 1);
    __m512 sums[SUMS];
#pragma GCC unroll 24
    for (int i = 0; i < SUMS; i++) sums[i] = _mm512_set1_ps((float)i);
    for (long step = 0; step < STEPS; step++) {
#pragma GCC unroll 24
        for (int i = 0; i < SUMS; i++) sums[i] = _mm512_dpbf16_ps(sums[i], a, b);
    }
    __m512 total = _mm512_setzero_ps();
#pragma GCC unroll 24
    for (int i = 0; i < SUMS; i++) total = _mm512_add_ps(total, sums[i]);
    sink = _mm512_reduce_add_ps(total);
    return 16 * 4.0 * SUMS * STEPS;
}
#endif

#ifdef __AMX_BF16__
struct Tile {
    alignas(64) uint32_t pairs[256];
};

double amx_portion() {
    Tile tile;
    for (uint32_t& pair : tile.pairs) pair = 0x3c003c00;
    const TileUnit unit;
    amx::stores_are_done();
    amx::zero<0>();
    amx::zero<1>();
    amx::zero<2>();
    amx::zero<3>();
    amx::load<4>(&tile, 64);
    amx::load<5>(&tile, 64);
    amx::load<6>(&tile, 64);
    amx::load<7>(&tile, 64);
    constexpr long turns = STEPS / 16;
    for (long turn = 0; turn < turns; turn++) {
        amx::multiply<0, 4, 6>();
        amx::multiply<1, 4, 7>();
        amx::multiply<2, 5, 6>();
        amx::multiply<3, 5, 7>();
    }
    amx::store<0>(&tile, 64);
    return 4 * 2.0 * 16 * 16 * 32 * turns;
}

bool tiles_permitted() {
#ifdef SLM_AMX_MODEL
    return true;
#else
    constexpr long sys_arch_prctl = 158, request_permission = 0x1023, tile_data = 18;
    return syscall(sys_arch_prctl, request_permission, tile_data) == 0;
#endif
}
#endif

}  // namespace

extern "C" {

// Values of an f32 vector in the widest instructions that this was compiled for.
long slm_f32_lanes() { return W; }

// FLOP/s of f32 multiply-adds, two operations each, on `threads` threads together, by their processor time.
double slm_f32_peak(int threads, double seconds) {
    return best_rate(threads, seconds, CLOCK_THREAD_CPUTIME_ID, [](int) { return f32_portion(); });
}

// The same of AVX512-BF16's vdpbf16ps; 0 where the processor has no such instruction.
double slm_avx512bf16_peak(int threads, double seconds) {
#ifdef __AVX512BF16__
    return best_rate(threads, seconds, CLOCK_THREAD_CPUTIME_ID, [](int) { return avx512bf16_portion(); });
#else
    return 0;
#endif
}

// The same of AMX's TDPBF16PS; 0 where there is none, or Linux does not give its tiles to this process.
double slm_amx_peak(int threads, double seconds) {
#ifdef __AMX_BF16__
    if (tiles_permitted()) return best_rate(threads, seconds, CLOCK_THREAD_CPUTIME_ID, [](int) { return amx_portion(); });
#endif
    return 0;
}

// Bytes per second that `threads` threads read together of an array of `bytes`, each of its own part; 0 where there is
// no such memory.
double slm_read_rate(long bytes, int threads, double seconds) {
    const long portions = bytes / 4 / threads / PORTION, part = portions * PORTION;
    float* array = portions ? (float*)aligned_alloc(1 << 21, part * threads * 4) : nullptr;
    if (!array) return 0;
#ifdef MADV_HUGEPAGE
    madvise(array, part * threads * 4, MADV_HUGEPAGE);
#endif
    // Every thread writes its part first, and so gets it near its core.
    std::vector<std::thread> writers;
    for (int thread = 0; thread < threads; thread++)
        writers.emplace_back([=] { for (long i = 0; i < part; i++) array[thread * part + i] = 1.0f; });
    for (auto& writer : writers) writer.join();
    std::vector<long> next(threads * 16);  // a cache line for each thread
    static volatile float sink;
    const double rate = best_rate(threads, seconds, CLOCK_MONOTONIC, [&](int thread) {
        long& at = next[thread * 16];
        const float* p = array + thread * part + at * PORTION;
        vec sums[8] = {};
        for (long i = 0; i < PORTION; i += 8 * W) {
#pragma GCC unroll 8
            for (int k = 0; k < 8; k++) sums[k] += *(const vec*)(p + i + k * W);
        }
        at = (at + 1) % portions;
        for (int k = 1; k < 8; k++) sums[0] += sums[k];
        for (int i = 0; i < W; i++) sink = sums[0][i];
        return 4.0 * PORTION;
    });
    free(array);
    return rate;
}

}  // extern "C"
