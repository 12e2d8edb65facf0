"""Which thread takes which task (slm/kernels/tasks.h), by a small program for this test."""

import subprocess

import pytest

from slm.machine.cpp_build import compiler
from tests.helpers import REPOSITORY

PROGRAM = r"""
#include "tasks.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

static void check(bool right, const char* what) {
    if (right) return;
    printf("%s\n", what);
    exit(1);
}

// Every row of every column exactly once, in pieces of at most `most`; nobody goes on before that.
static void all_once(Share& share, std::vector<std::atomic<int>>& seen, long columns, long rows, long most, int times) {
    share.each(columns, rows, most, [&](long column, long from, long to) {
        check(to > from && to - from <= most, "a piece of another size");
        for (long row = from; row < to; row++) seen[column * rows + row]++;
    });
    for (auto& each : seen) check(each == times, "a task is left out or done twice");
#pragma omp barrier
}

int main() {
    for (int threads : {1, 2, 5, 3, 5, 2})  // a team that grows and shrinks finds nothing of the one before
        for (long rows : {0, 1, 4, 97})
            for (long most : {1, 3, 200}) {
                const long columns = 3;
                std::vector<std::atomic<int>> seen(columns * rows);
                omp_set_num_threads(threads);
                Tasks& tasks = Tasks::for_region();
#pragma omp parallel
                {
                    Share share(tasks);
                    all_once(share, seen, columns, rows, most, 1);
                    all_once(share, seen, columns, rows, most, 2);
                }
            }

    omp_set_num_threads(4);
    const long rows = 400;
    std::vector<int> by(rows);
    const auto wait = [](long ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
    Tasks& tasks = Tasks::for_region();
#pragma omp parallel
    {
        Share share(tasks);
        const int me = omp_get_thread_num();
#pragma omp barrier
        for (int loop = 0; loop < 3; loop++) {
            share.each(rows, [&](long row) {
                by[row] = me;
                wait(loop == 2 && me == 3 ? 1000 : 1);
            });
#pragma omp single
            if (loop < 2) {
                long own = 0;
                for (long row = 0; row < rows; row++) own += by[row] == row / 100;
                check(own > rows * 6 / 10, "rows go from thread to thread");
            } else {
                long late = 0;
                for (long row = 0; row < rows; row++) late += by[row] == 3;
                check(late == 1, "nobody helps a thread that is late");
            }
        }
    }
}
"""


def test_each_task_is_done_once_by_the_same_thread_or_by_one_that_is_free(tmp_path):
    command = compiler(gcc_only=True)
    if command is None:
        pytest.skip("no g++")
    source, program = tmp_path / "tasks.cpp", tmp_path / "tasks"
    source.write_text(PROGRAM)
    flags = ["-std=c++17", "-O2", "-fopenmp", "-Wall", "-Wextra", "-Werror", f"-I{REPOSITORY / 'slm' / 'kernels'}"]
    subprocess.run([command, *flags, str(source), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
