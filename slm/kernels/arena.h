// Memory that a thread keeps from one task to the next.
#pragma once
#include <cstddef>
#include <cstdlib>

// One block, aligned to a page; what is taken of it is aligned to a cache line.
struct Arena {
    char* base = nullptr;
    size_t size = 0, used = 0;

    Arena() = default;
    Arena(const Arena&) = delete;
    ~Arena() { free(base); }

    // Room for `bytes`, all of it free. False where the system has no such memory: nothing may then be taken.
    bool reset(size_t bytes) {
        used = 0;
        if (bytes <= size) return true;
        free(base);
        const size_t whole = (bytes + 4095) / 4096 * 4096;
        base = (char*)aligned_alloc(4096, whole);
        size = base ? whole : 0;
        return base != nullptr;
    }

    template <class T>
    T* take(long n) {
        T* p = (T*)(base + used);
        used += (n * sizeof(T) + 63) / 64 * 64;
        return p;
    }
};
