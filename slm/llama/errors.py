"""The errors of llama.cpp and of its wrong use."""


class LlamaError(RuntimeError):
    """llama.cpp refused or failed; the message ends in its own reason where it gave one."""


class KvCacheFull(LlamaError):  # noqa: N818 (what happened, as the field calls it)
    """No room in the KV cache for this batch; nothing of it was computed. Recoverable."""


class GrammarDeadEndError(LlamaError):
    """No token fits the grammar and the other constraints, or the grammar takes too long."""
