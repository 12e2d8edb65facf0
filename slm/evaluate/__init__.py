"""``python -m slm.evaluate``: perplexity of a checkpoint and of the GGUF files made from it."""

from slm.callable import make_callable

make_callable(__name__)
