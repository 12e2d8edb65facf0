"""A mode that checks what the kernels are given: the number format, the layout and the size of each tensor.

C reads and writes at an address, whatever is there. With ``SLM_CHECK_CALLS=1`` in the environment every call is first
compared with the table below. The tests have it on.

Tested in tests/slm/kernels/test_checked.py.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

VARIABLE = "SLM_CHECK_CALLS"
ARGUMENTS = {
    "slm_pack_forward": "weight:f32:n*k n k out:unit:(2 if half else 1)*n*k//U half",
    "slm_pack_backward": "weight:f32:n*k n k out:unit:total*k//U first total",
    "slm_linear": "x:act:m*k m k B:unit:n*k//U n residual?:act:m*n out:act:m*n",
    "slm_gate_up": "x:act:m*k m k B:unit:2*f*k//U f gate?:act:m*f up?:act:m*f act:act:m*f gelu add",
    "slm_gate_up_backward": (
        "dout:act:m*d m d B:unit:f*d//U f gate:act:m*f up:act:m*f d_gate_up:act:2*m*f act:act:m*f gelu add"
    ),
    "slm_bias_gradient": "dy~:act:(m-1)*ldy+n ldy m n grad:f32:n add",
    "slm_weight_gradient": (
        "dy~:act:(m-1)*ldy+n ldy x~:act:(m-1)*ldx+k ldx m n k grad:f32:n*k add "
        "scratch:unit:K.slm_weight_gradient_scratch(m,n,k)"
    ),
    "slm_attention_forward": (
        "qkv:act:B*T*(H+2*G)*E B T H G E R cos:f32:T*R sin:f32:T*R q_norm?:f32:E k_norm?:f32:E eps cap starts?:i32:B*T "
        "out:act:B*T*H*E lse:f32:B*H*T scratch:unit:K.slm_attention_scratch(B,T,G,E)"
    ),
    "slm_attention_backward": (
        "qkv:act:B*T*(H+2*G)*E B T H G E R cos:f32:T*R sin:f32:T*R q_norm?:f32:E k_norm?:f32:E eps cap starts?:i32:B*T "
        "out:act:B*T*H*E lse:f32:B*H*T dout:act:B*T*H*E dqkv:act:B*T*(H+2*G)*E d_norms:f32:2*E "
        "heads:f32:K.slm_attention_backward_scratch(B,T,H,E) norms:f32:B*H*2*E"
    ),
    "slm_short_conv": "bcx:act:3*B*T*D B T D W taps:f32:W*D starts?:i32:B*T out:act:B*T*D",
    "slm_short_conv_backward": (
        "bcx:act:3*B*T*D dy:act:B*T*D B T D W taps:f32:W*D starts?:i32:B*T d_bcx:act:3*B*T*D d_taps:f32:W*D "
        "partial:f32:K.slm_short_conv_scratch(D,W)"
    ),
    "slm_rmsnorm": "x:act:m*d m d weight:f32:d eps out:act:m*d inverse_rms?:f32:m",
    "slm_rmsnorm_backward": (
        "dh:act:m*d x:act:m*d inverse_rms:f32:m weight:f32:d m d residual?:act:m*d dx:act:m*d d_weight:f32:d add "
        "partial:f32:K.slm_rmsnorm_backward_scratch(d)"
    ),
    "slm_embed": "table:f32:d ids:i64:m m d out:act:m*d",
    "slm_embed_backward": "dx:act:m*d ids:i64:m m d grad:f32:d",
    "slm_cross_entropy": (
        "x:act:m*d m d B:unit:v*d//U v cap offsets?:f32:v targets:i64:m scale keep "
        "logits:act:(m if keep else min(m,K.slm_cross_entropy_rows()))*v slopes?:act:m*v losses:f32:m"
    ),
    "slm_head_backward": "dlogits:act:m*v m v B:unit:v*d//U d dx:act:m*d",
    "slm_head_block": "v",
    "slm_head_logits": "x:act:m*d m d B:unit:n*d//U n offsets?:f32:n logits~:act:(m-1)*ld+n ld",
    "slm_softmax": "logits:act:m*v m v cap offsets?:f32:v targets:i64:m scale keep slopes?:act:m*v losses:f32:m",
    "slm_head_backward_part": "dlogits~:act:(m-1)*ld+n ld m B:unit:n*d//U n d dx:f32:m*d add",
    "slm_adamw": "tensors:i64:5*count count numbers:f32:1",
    "slm_sum_of_squares": "tensors:i64:2*count count",
}
"""By function, its arguments in order. A number has a name. A tensor has a name, what it holds, and how many values it
has at least: ``act`` is the kernels' format of activations, ``unit`` 32 bits of packed operands (``U`` values), ``K``
the kernels. ``?``: it may be null. ``~``: its rows may lie apart."""
FORMATS = {
    "f32": (torch.float32,),
    "i32": (torch.int32,),
    "i64": (torch.int64,),
    "unit": (torch.int32, torch.float32),
}


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One tensor among the arguments."""

    name: str
    place: int
    holds: str
    least: Any
    """The compiled expression of its least number of values."""
    nullable: bool
    strided: bool


def is_on() -> bool:
    """Whether calls are checked in this process."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def checking(kernels: Any, function: str) -> Callable[..., None] | None:
    """What compares the arguments of ``function``; None where it has no tensors. ValueError from it says what is
    wrong."""
    if function not in ARGUMENTS:
        return None
    numbers, tensors = _read(ARGUMENTS[function])

    def check(*arguments: Any) -> None:
        if len(arguments) != len(numbers) + len(tensors):
            raise ValueError(f"{function} takes {len(numbers) + len(tensors)} arguments, not {len(arguments)}")
        known = {name: arguments[place] for name, place in numbers.items()}
        known |= {"K": kernels, "U": kernels.values_per_unit}
        for each in tensors:
            fault = _fault(arguments[each.place], each, kernels.dtype, known)
            if fault:
                raise ValueError(f"{function}: {each.name} {fault}")

    return check


def _read(text: str) -> tuple[dict[str, int], list[Expected]]:
    """The places of an entry's numbers by name, and its tensors."""
    numbers: dict[str, int] = {}
    tensors = []
    # Blanks within an expression are those around "if", "else" and nothing else.
    words = text.replace(" if ", "\0if\0").replace(" else ", "\0else\0").split()
    for place, word in enumerate(words):
        name, colon, rest = word.partition(":")
        if not colon:
            numbers[name] = place
            continue
        holds, _, least = rest.partition(":")
        tensors.append(
            Expected(
                name=name.rstrip("?~"),
                place=place,
                holds=holds,
                least=compile(least.replace("\0", " "), name, "eval"),
                nullable="?" in name,
                strided="~" in name,
            )
        )
    return numbers, tensors


def _fault(value: Any, expected: Expected, activations: torch.dtype, known: dict[str, Any]) -> str | None:
    """What is wrong with an argument, in some words."""
    if value is None:
        return None if expected.nullable else "is null"
    if not isinstance(value, torch.Tensor):
        return f"is no tensor but {value!r}"
    allowed = FORMATS.get(expected.holds, (activations,))
    if value.dtype not in allowed:
        return f"holds {value.dtype}, not {' or '.join(map(str, allowed))}"
    if value.device.type != "cpu":
        return f"is on {value.device}, not in memory"
    least = eval(expected.least, {"min": min}, known)  # of the table above, on numbers
    if expected.strided:
        if value.ndim and value.stride(-1) != 1:
            return f"has columns that lie {value.stride(-1)} values apart"
        there = value.untyped_storage().nbytes() // value.element_size() - value.storage_offset()
    else:
        if not value.is_contiguous():
            return f"is not contiguous: shape {tuple(value.shape)}, strides {value.stride()}"
        there = value.numel()
    return f"has {there} values, and {least} are read or written" if there < least else None
