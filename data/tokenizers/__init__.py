"""Tokenizers of every origin as one class over Hugging Face's ``tokenizer.json``."""
