"""From a checkpoint to GGUF files that provably compute the same."""
