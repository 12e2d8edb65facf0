"""What a base in blocks costs LoRA: processor time of a forward and backward pass next to the same base in f32.

    python -m tests.soak.held_rate [shapes=0.6b] [layers=2] [scored=0.5] [repeats=2]

All ways take their turn in one process, on one thread, so that other programs hardly change the ratio. Random weights
of real models' shapes, 1,024 tokens, of which a share ``scored`` has a target, rank 16. A model of ``layers`` layers is
timed, the head apart from them, and the whole model's time is the head's plus a layer's times their number. f32 is
taken as a run with 22 GiB free takes it: with packed weights that are kept where they are small.
"""

import sys
from dataclasses import replace
from time import process_time
from typing import Any

import torch

from slm.kernels.choice import open_kernels
from slm.kernels.fused import Fused
from slm.llama.blocks.held import HeldBlocks
from slm.model.config import ModelConfig
from slm.model.cross_entropy import IGNORED
from slm.model.layers.held import hold
from slm.model.transformer import LanguageModel
from slm.report import table
from slm.train.config import LoraConfig
from slm.train.lora.adapter import AdapterParameters
from slm.train.lora.held_base import KINDS
from slm.train.memory import GIB
from tests.soak.tune_memory import SHAPES

TOKENS, FREE = 1024, 22 * GIB


class Timed:
    """One model; ``seconds`` of its last pass: the head's and the layers'."""

    def __init__(self, shape: ModelConfig, layers: int, bits: int) -> None:
        torch.manual_seed(1)
        model = LanguageModel(replace(shape, n_layers=layers))
        if bits in KINDS:
            for module in list(model.modules()):
                if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
                    of_table = module.weight is model.head or isinstance(module, torch.nn.Embedding)
                    hold(module, HeldBlocks(KINDS[8 if of_table else bits], module.weight.detach().numpy()))
        AdapterParameters(model, LoraConfig(rank=16), "base")
        kernels, _ = open_kernels(True, "f32", bits=16)
        assert kernels is not None
        keep = bits == 32 and 8 * shape.n_params < FREE / 4
        self.fused = Fused(model, kernels, keep_packed=keep, lean=not keep)
        head = self.fused._head
        self._of_head, gradients = 0.0, head.gradients

        def timed(*arguments: Any) -> Any:
            began = process_time()
            found = gradients(*arguments)
            self._of_head = process_time() - began
            return found

        head.gradients = timed  # type: ignore[method-assign]

    def run(self, ids: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
        """Seconds of the head and of the layers."""
        began = process_time()
        self.fused.loss_and_gradients(ids, targets)
        return self._of_head, process_time() - began - self._of_head


def main(argv: list[str]) -> int:
    """Print the table."""
    given = dict(word.split("=", 1) for word in argv)
    torch.set_num_threads(1)
    layers = int(given.get("layers", 2))
    rows = []
    for name in given.get("shapes", ",".join(SHAPES)).split(","):
        shape = ModelConfig(**SHAPES[name][0])
        ids = torch.randint(0, shape.vocab_size, (1, TOKENS))
        targets = torch.where(torch.rand(1, TOKENS) < float(given.get("scored", 0.5)), ids, IGNORED)
        ways = {bits: Timed(shape, layers, bits) for bits in (32, 8, 4)}
        least: dict[int, tuple[float, ...]] = {}
        for turn in range(1 + int(given.get("repeats", 2))):
            for bits, each in ways.items():
                found = each.run(ids, targets)
                if turn:  # the first packs what is kept
                    least[bits] = tuple(map(min, found, least.get(bits, found)))
        whole = {bits: head + rest / layers * shape.n_layers for bits, (head, rest) in least.items()}
        for bits, (head, rest) in least.items():
            figures = (head, rest / layers, whole[bits], TOKENS / whole[bits], whole[32] / whole[bits])
            rows.append([name, str(bits), *(f"{each:.2f}" for each in figures)])
            print(*rows[-1], flush=True)
    columns = ("shape", "bits", "head, s", "a layer, s", "all, s", "tokens/s", "of f32's rate")
    table("processor time of LoRA", columns, rows, key=2)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
