"""``python -m slm.export.bench``: size, quality and speed of every quantization type."""
