"""``python -m slm.serve.bench``: the server under load, next to llama.cpp's limit and other servers."""
