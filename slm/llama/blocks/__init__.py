"""Weights as the blocks of llama.cpp's quantized types: which type each tensor gets, and the way there and back."""
