"""Quantization-aware training: forward and backward see the weights that a quantized file will hold."""
