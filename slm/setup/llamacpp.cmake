# Read by CMake inside llama.cpp's own project, after its first line. llama-cpp-python asks for llama.cpp's "common"
# library, which it neither loads nor ships: without it, 83 steps are built instead of 250.
set(LLAMA_BUILD_COMMON OFF)
