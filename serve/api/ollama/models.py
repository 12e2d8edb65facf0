"""What Ollama's API says of a model, from its file.

Tested in tests/serve/api/ollama/test_ollama_routes.py.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from typing import Any

from slm.llama.gguf_check import read_header
from slm.serve.api.ollama.shapes import OllamaDetails, OllamaModel, OllamaRunning, OllamaShow
from slm.serve.pool.model_pool import Served

VERSION = "0.12.6"
"""The version of Ollama that this API follows. Clients refuse one that is too old for them."""
FILE_TYPES = dict(
    enumerate(
        [
            *("F32", "F16", "Q4_0", "Q4_1", "", "", "", "Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L"),
            *("Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS"),
            *("IQ1_S", "IQ4_NL", "IQ3_S", "IQ3_M", "IQ2_S", "IQ2_M", "IQ4_XS", "IQ1_M", "BF16", "", "", "", "TQ1_0"),
            *("TQ2_0", "MXFP4_MOE", "NVFP4", "Q1_0", "Q2_0"),
        ]
    )
)
"""Names of ``general.file_type`` in a GGUF file; "" for numbers that llama.cpp has withdrawn. Written out, because the
server's process does not load llama.cpp."""
_NEVER = "2318-01-01T00:00:00Z"


def tag(served: Served) -> OllamaModel:
    """A model's entry in the list. Raises ``UserError`` when its file cannot be read."""
    status = served.path.stat()
    identity = f"{served.path.resolve()} {status.st_size} {status.st_mtime_ns} {served.config.adapter or ''}"
    return OllamaModel(
        name=full_name(served),
        model=full_name(served),
        modified_at=_time(status.st_mtime),
        size=status.st_size,
        digest=hashlib.sha256(identity.encode()).hexdigest(),
        details=details(served),
    )


def running(served: Served, *, idle_s: float | None) -> OllamaRunning:
    """The entry of a loaded model. ``idle_s``: after how long without a request it is unloaded."""
    assert served.loaded is not None
    entry = tag(served)
    expires = _NEVER if idle_s is None else _time(datetime.datetime.now(datetime.UTC).timestamp() + idle_s)
    return OllamaRunning(
        name=entry["name"],
        model=entry["model"],
        size=served.loaded.n_bytes,
        digest=entry["digest"],
        details=entry["details"],
        expires_at=expires,
        size_vram=0,
        context_length=served.loaded.info.context,
    )


def show(served: Served) -> OllamaShow:
    """All that is known of a model. Raises ``UserError`` when its file cannot be read."""
    info = served.loaded.info if served.loaded is not None else None
    header = read_header(served.path)
    capabilities = ["completion", "tools", "embedding"]
    if info is not None and info.fim is not None:
        capabilities.append("insert")
    if served.loaded is not None and served.loaded.chat.thinks:
        capabilities.append("thinking")
    facts = {name: value for name, value in header.metadata.items() if not name.endswith("[]")}
    facts |= {"general.parameter_count": served.facts().n_params}
    facts.pop("tokenizer.chat_template", None)
    return OllamaShow(
        modelfile=f"FROM {served.path}\n",
        parameters="",
        template=(info.chat_template or "") if info is not None else "",
        details=details(served),
        model_info=facts,
        capabilities=capabilities,
        modified_at=_time(served.path.stat().st_mtime),
    )


def details(served: Served) -> OllamaDetails:
    """A model's kind and size. Raises ``UserError`` when its file cannot be read."""
    facts = served.facts()
    return OllamaDetails(
        parent_model=served.parent or "",
        format="gguf",
        family=facts.architecture,
        families=[facts.architecture],
        parameter_size=_size(facts.n_params),
        quantization_level=_quantization(read_header(served.path).metadata),
    )


def full_name(served: Served) -> str:
    """The model's name with a tag, as Ollama's clients expect one."""
    return served.name if ":" in served.name else f"{served.name}:latest"


def _quantization(metadata: Mapping[str, Any]) -> str:
    number = metadata.get("general.file_type")
    return FILE_TYPES.get(number, "") or "unknown" if isinstance(number, int) else "unknown"


def _size(n: int) -> str:
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.1f}M"


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat().replace("+00:00", "Z")
