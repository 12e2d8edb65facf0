"""Ollama's API over the same models: /api/chat, /api/generate, /api/embed and what its clients ask beside them."""
