"""Grammars that constrain a reply: JSON Schema to GBNF, and GBNF that is checked before llama.cpp sees it."""
