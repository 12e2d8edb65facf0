"""An OpenAI-compatible server over a GGUF file."""
