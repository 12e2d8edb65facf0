"""A GGUF file read back as a checkpoint: configuration, tokenizer, chat template and weights, each compared with what
llama.cpp makes of the file."""
