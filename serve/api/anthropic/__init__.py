"""Anthropic's form of a chat over the same models: /v1/messages."""
