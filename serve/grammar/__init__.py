"""Grammars that force an answer's form: JSON schema to GBNF, and GBNF read and checked before llama.cpp sees it."""
