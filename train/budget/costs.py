"""What a model costs after its choice: the size of its Q4_K_M file, what it writes in a second, money.

Tested in tests/train/tools/test_plan.py.
"""

from dataclasses import asdict, dataclass

from slm.model.config import ModelConfig

Q4_K, Q6_K = 144 * 8 / 256, 210 * 8 / 256
"""Bits per weight of llama.cpp's block types."""
MORE_BITS = 0.5
"""Share of the layers in which Q4_K_M stores the value and down projections as Q6_K."""
BYTES_PER_ID = 45
"""Bytes of a vocabulary's token in a GGUF file: the token's text, its score, its type and its merge."""


@dataclass(frozen=True)
class Costs:
    """Money, in the currency of the price per hour. None where there is no speed or price to divide by."""

    training: float
    """The whole run."""
    training_per_million_tokens: float
    serving_per_million_tokens: float | None
    """Written for one reader, the machine doing nothing else; None where its speed is not known."""
    api_per_million_tokens: float
    api_is_x: float | None
    """The API's price in a person's units."""
    tokens_until_paid: float | None
    """Tokens to write until the difference to the API's price has paid for the training."""

    def record(self) -> dict[str, float | None]:
        return asdict(self)


def q4_k_m_bytes(model: ModelConfig) -> float:
    """About the size of the Q4_K_M file."""
    kv_width = model.n_kv_heads * model.head_dim
    raised = MORE_BITS * model.n_layers * model.d_model * (kv_width + model.ffn_dim)
    table = model.vocab_size * model.d_model
    head = table * Q6_K + (0 if model.tie_embeddings else table * Q4_K)
    bits = (model.n_layer_matrix_params - raised) * Q4_K + raised * Q6_K + head
    norms = 4 * (2 * model.n_layers + 1) * model.d_model
    return bits / 8 + norms + BYTES_PER_ID * model.vocab_size + 4096


def costs(
    *, seconds: float, tokens: float, decode_tokens_per_s: float | None, price_per_hour: float, api_price: float
) -> Costs:
    """What training for ``seconds`` on ``tokens`` and serving at this speed cost, against an API. Without a speed of
    serving (None) the training alone."""
    training = price_per_hour * seconds / 3600
    serving = None if decode_tokens_per_s is None else price_per_hour / 3600 / decode_tokens_per_s * 1e6
    saved = 0.0 if serving is None else api_price - serving
    return Costs(
        training=training,
        training_per_million_tokens=training / tokens * 1e6,
        serving_per_million_tokens=serving,
        api_per_million_tokens=api_price,
        api_is_x=api_price / serving if serving else None,
        tokens_until_paid=training / saved * 1e6 if saved > 0 else None,
    )
