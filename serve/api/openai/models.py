"""/v1/models: the entry of each model.

Tested in tests/serve/test_several_models.py, tests/serve/test_server.py.
"""

from __future__ import annotations

from slm.data.errors import UserError
from slm.serve.api.openai.response_shapes import Model, ModelMeta, Sampling
from slm.serve.chat_template import THINKING
from slm.serve.engine.protocol import SamplingDefaults
from slm.serve.pool.model_pool import Served


def model_card(served: Served) -> Model:
    """A model's entry. ``meta`` is what its file says; None when the file cannot be read any more."""
    meta: ModelMeta | None = None
    try:
        facts = served.facts()
    except UserError:
        pass
    else:
        meta = ModelMeta(
            architecture=facts.architecture,
            n_params=facts.n_params,
            size_bytes=facts.size_bytes,
            n_vocab=facts.n_vocab,
            n_embd=facts.n_embd,
            n_ctx_train=facts.n_ctx_train,
            context=facts.context(served.config.context),
            sampling=_sampling(served.config.sampling.over(facts.sampling)),
            thinking=any(map(served.loaded.chat.reads, THINKING)) if served.loaded is not None else None,
            chat_template=served.loaded.chat.own if served.loaded is not None else facts.has_template,
        )
    return Model(
        id=served.name,
        object="model",
        created=served.created,
        owned_by="slm",
        status=served.state,
        parent=served.parent,
        meta=meta,
    )


def _sampling(defaults: SamplingDefaults) -> Sampling:
    return Sampling(
        temperature=defaults.temperature,
        top_k=defaults.top_k,
        top_p=defaults.top_p,
        min_p=defaults.min_p,
        repeat_penalty=defaults.repeat_penalty,
        repeat_last_n=defaults.repeat_last_n,
    )
