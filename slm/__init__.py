"""The language model, and what every stage needs."""
