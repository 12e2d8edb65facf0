"""The training step in C++, for processors with AVX512-BF16; built on the user's machine at first use."""
