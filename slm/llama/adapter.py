"""A LoRA adapter on a model. llama.cpp adds scale * B A to the products of the weights that the adapter names.

Source: ``llama_adapter_lora_init`` in llama.cpp's ``llama-adapter.cpp``.

Tested in tests/export/test_adapter.py, tests/serve/test_adapters.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as C

from slm.llama.adapter_file import check_fits
from slm.llama.errors import LlamaError, MisuseError
from slm.llama.log import clear_log, first_error
from slm.llama.model import Model


class Adapter:
    """An adapter, loaded for one model. It is freed with the model. ``scale`` multiplies its part."""

    def __init__(self, model: Model, path: str | Path, *, scale: float = 1.0) -> None:
        self.path, self.scale = Path(path), scale
        check_fits(self.path, model.path)
        clear_log()
        self._adapter = C.llama_adapter_lora_init(model._open(), os.fsencode(self.path))
        if not self._adapter:
            raise LlamaError(f"llama.cpp cannot load the adapter {self.path}: {first_error()}")
        self.model = model

    def _open(self) -> Any:
        if not self.model._model:
            raise MisuseError("the adapter's model is closed")
        return self._adapter
