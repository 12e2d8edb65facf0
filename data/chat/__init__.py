"""Conversations as training text: formats, chat templates, tokens, and the embedded instruction set."""
