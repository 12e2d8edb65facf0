// How many times as fast as products in f32 those in integers are on this processor.
#include <chrono>

#include "operands.h"

extern "C" {

// One tile of each, all in the first cache, in turn for some 20 ms; the fastest of each count.
double slm_integer_gain() {
    constexpr long DEPTH_OF_TILE = 256, TILES = 512;
    alignas(64) static float A[MR * DEPTH_OF_TILE], B[DEPTH_OF_TILE * NR], scales[2 * NR];
    [[maybe_unused]] static volatile float sink;  // read by nobody: it keeps the products from being left out
    double f32 = 1e9, integers = 1e9;
    auto keep = [&](int, vec x, vec y) ALWAYS { sink = x[0] + y[0]; };
    auto seconds = [](auto&& tile) {
        const auto began = std::chrono::steady_clock::now();
        for (long i = 0; i < TILES; i++) tile();
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    for (int turn = 0; turn < 40; turn++) {
        const double one = seconds([&] { tile(MR, DEPTH_OF_TILE, A, DEPTH_OF_TILE, 1, B, keep); });
        const double two = seconds([&] {
            unit_tile_of<MR>(DEPTH_OF_TILE / UNIT, (const int32_t*)A, DEPTH_OF_TILE / UNIT, 1, scales, (const int32_t*)B, scales, keep,
                             Nothing{});
        });
        f32 = one < f32 ? one : f32;
        integers = two < integers ? two : integers;
    }
    return f32 / integers;
}

}  // extern "C"
