"""Models with matrices that are joined, and other than that are an architecture that is computed here: their
configuration and their tensors as that architecture's.

A dense Granite 4 is a Granite with its feed-forward under other names, gate and up joined.

Shape suffixes: O output rows, I input columns.

Tested in tests/slm/model/test_joined.py.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from slm.data.errors import UserError

if TYPE_CHECKING:  # the configuration is read before threads are set and torch may come
    from torch import Tensor

JOINED = {"GraniteMoeHybridForCausalLM": "GraniteForCausalLM"}
"""transformers' classes of such models, and of those that compute the same."""
_INPUT, _OUTPUT = ".shared_mlp.input_linear.weight", ".shared_mlp.output_linear.weight"
_ENDS = (_INPUT, _OUTPUT)


def as_plain(config: dict[str, Any]) -> dict[str, Any]:
    """A ``config.json`` of a joined model as that of the model that computes the same; any other one as it is.

    UserError for members of such a family that are something else.
    """
    name = (config["architectures"] or [None])[0]
    if name not in JOINED:
        return config
    if config.get("num_local_experts", 8):
        raise UserError(
            f"num_local_experts={config.get('num_local_experts', 8)} in config.json is not supported: of Granite 4 "
            "only the dense models are"
        )
    kinds = config.get("layer_types") or config.get("layers_block_type") or ["mamba"]
    if others := sorted({str(each) for each in kinds} - {"attention", "full_attention"}):
        raise UserError(
            f"layers of the kind {others[0]!r} in config.json are not supported: of Granite 4 only the models with "
            "attention in all layers are (granite-4.0-350m and granite-4.0-1b, not those with an h in their name)"
        )
    if config.get("position_embedding_type") != "rope":
        raise UserError(
            f"position_embedding_type={config.get('position_embedding_type')!r} in config.json is not supported: only "
            "rotary positions ('rope') are"
        )
    return config | {
        "architectures": [JOINED[name]],
        "intermediate_size": config.get("shared_intermediate_size", 1024),
    }


def is_joined(names: Iterable[str]) -> bool:
    """Whether some of these tensors are joined ones."""
    return any(name.endswith(_ENDS) for name in names)


def parted(weights: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """The tensors with each joined one as its parts, which share its memory."""
    found = dict[str, "Tensor"]()
    for name, tensor_OI in weights.items():
        stem = name.removesuffix(next((end for end in _ENDS if name.endswith(end)), ""))
        if stem == name:
            found[name] = tensor_OI
        elif name.endswith(_OUTPUT):
            found[f"{stem}.mlp.down_proj.weight"] = tensor_OI
        else:
            gate, up = tensor_OI.split([tensor_OI.shape[0] // 2, tensor_OI.shape[0] - tensor_OI.shape[0] // 2])
            found |= {f"{stem}.mlp.gate_proj.weight": gate, f"{stem}.mlp.up_proj.weight": up}
    return found
