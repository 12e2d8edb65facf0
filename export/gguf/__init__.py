"""A checkpoint as one GGUF file: metadata, vocabulary, tensors."""
