"""The errors of llama.cpp and of its wrong use."""


class LlamaError(RuntimeError):
    """llama.cpp refused or failed; the message ends in its own reason where it gave one."""


class KvCacheFull(LlamaError):  # noqa: N818 (what happened, as the field calls it)
    """No room in the KV cache for this batch; nothing of it was computed. Recoverable."""


class GrammarDeadEndError(LlamaError):
    """No token fits the grammar and the other constraints, or the grammar takes too long."""


class MisuseError(AssertionError):
    """A call that would abort the process inside native code, such as one on a closed context. The caller has a
    defect. Unlike an ``assert``, the check that raises this stays under ``python -O``."""
