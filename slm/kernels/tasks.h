// Which thread takes which task of a loop. Each thread first takes its own share, the same rows in every loop over them,
// so that they are still in its core's cache. Then it takes what others have left: their cores may be busy otherwise.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#ifdef _OPENMP
#include <omp.h>
#else  // a compiler without OpenMP has one thread
inline int omp_get_max_threads() { return 1; }
inline int omp_get_num_threads() { return 1; }
inline int omp_get_thread_num() { return 0; }
#endif

// What the threads of a parallel region share. The thread that begins the region makes it before, by `for_region`.
class Tasks {
public:
    static Tasks& for_region() {
        static thread_local Tasks mine;
        const int threads = omp_get_max_threads();
        if (threads > mine.threads) {
            mine.taken.reset(new Taken[threads]);
            mine.threads = threads;
        }
        return mine;
    }

private:
    friend class Share;
    // How many tasks of a thread's share are taken, and of which loop: what an earlier one has left counts as none.
    struct alignas(64) Taken {
        std::atomic<uint64_t> loop_and_count{0};
    };
    std::unique_ptr<Taken[]> taken;
    int threads = 0;
    uint64_t loops = 0;
};

// One thread's view of a region, made by each of its threads before the region's first loop.
class Share {
    static constexpr uint64_t COUNT = 0xffffffff;
    Tasks& tasks;
    const long me = omp_get_thread_num(), all = omp_get_num_threads();
    uint64_t loop;

    // The next task of `whose` share, of `n`, or -1.
    long next(long whose, long n) {
        auto& cell = tasks.taken[whose].loop_and_count;
        uint64_t seen = cell.load(std::memory_order_relaxed), count;
        do {
            count = seen >> 32 == loop ? seen & COUNT : 0;
            if ((long)count >= n) return -1;
        } while (!cell.compare_exchange_weak(seen, loop << 32 | (count + 1), std::memory_order_relaxed));
        return (long)count;
    }

public:
    explicit Share(Tasks& tasks) : tasks(tasks), loop(tasks.loops) {}
    ~Share() {
        if (me == 0) tasks.loops = loop;  // each thread has read it before the first loop's barrier
    }
    Share(const Share&) = delete;

    // Calls work(column, from, to) until each of the columns has met all rows, `most` of them or fewer at a time. A
    // worksharing loop: all threads of the region call it, and none returns before the work is done.
    template <class Work>
    void each(long columns, long rows, long most, Work&& work) {
        loop = (loop + 1) & COUNT;
        for (long i = 0; i < all; i++) {
            const long whose = (me + i) % all, first = rows * whose / all, last = rows * (whose + 1) / all;
            const long pieces = (last - first + most - 1) / most;
            for (long task; (task = next(whose, columns * pieces)) >= 0;) {
                const long from = first + task % pieces * most;
                work(task / pieces, from, from + most < last ? from + most : last);
            }
        }
#pragma omp barrier
    }

    // Calls work(task) for each of n tasks.
    template <class Work>
    void each(long n, Work&& work) {
        each(1, n, 1, [&](long, long task, long) { work(task); });
    }
};

// Calls work(share) in each thread of a parallel region.
template <class Work>
inline void in_parallel(Work&& work) {
    Tasks& tasks = Tasks::for_region();
#pragma omp parallel
    {
        Share share(tasks);
        work(share);
    }
}
