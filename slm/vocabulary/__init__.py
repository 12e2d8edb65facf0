"""A checkpoint's tokenizer as llama.cpp's, and the proof that both give the same ids."""
