// What a thread's AMX tiles look like, kept and set again. See slm/llama/tiles.py.
#include <cstdint>

namespace {

struct alignas(64) Config {
    uint8_t palette, rest[63];
};
thread_local Config kept;  // palette 0: nothing was kept

}  // namespace

extern "C" {

// In this thread and those that work for it in a region of n_threads. Whether all of them had tiles.
int slm_keep_tiles(int n_threads) {
    int all = 1;
#pragma omp parallel num_threads(n_threads) reduction(&& : all)
    {
        asm volatile("sttilecfg %0" : "=m"(kept));
        all = all && kept.palette;
    }
    return all;
}

void slm_set_tiles(int n_threads) {
#pragma omp parallel num_threads(n_threads)
    if (kept.palette) asm volatile("ldtilecfg %0" ::"m"(kept));
}

}  // extern "C"
