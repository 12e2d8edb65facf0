"""The last module that the fork server imports (tests/helpers/programs.py): what its processes would all do again.

Hydra's files of the configurations that most small runs have are read. A run imports much only when it has read its
options, a quarter of a small one's time. What was imported is no garbage: no process looks through it for some, which
would also copy every page of it.
"""

import gc
import importlib

from PIL import Image

from slm.configuration import load_config
from tests.helpers.small_run import OPTIONS

LATER = (
    "matplotlib.backends.backend_agg",
    "slm.data.chat.tool_template",
    "slm.data.stream.chat_setup",
    "slm.data.tokenizers.sample",
    "slm.data.tokenizers.train_bpe",
    "slm.llama.blocks.held",
    "slm.machine.topology",
    "slm.model.resize",
    "slm.train.beginning.data",
    "slm.train.beginning.messages",
    "slm.train.beginning.model",
    "slm.train.beginning.resumed",
    "slm.train.bigrams.first_weights",
    "slm.train.bigrams.start",
    "slm.train.calibration.head",
    "slm.train.components.head_calibration",
    "slm.train.components.make",
    "slm.train.components.patience",
    "slm.train.components.phases",
    "slm.train.components.quantization",
    "slm.train.components.spike_guard",
    "slm.train.components.teacher",
    "slm.train.distributed.join",
    "slm.train.distributed.rank_process",
    "slm.train.lora.adapter",
    "slm.train.lora.held_base",
    "slm.train.objective.gguf_teacher",
    "slm.train.objective.make",
    "slm.train.objective.preference",
    "slm.train.objective.reference",
    "slm.train.objective.sampled_softmax",
    "slm.train.objective.superposition",
    "slm.train.objective.teacher_cache",
    "slm.train.qat.moments",
    "slm.train.run.text",
    "slm.train.start",
    "slm.vocabulary.exportable",
)
"""Modules that every run imports, or many do, in the midst of its work."""

for each in LATER:
    importlib.import_module(each)
Image.preinit()  # for the picture of the losses
load_config("train", list(OPTIONS))
gc.collect()
gc.freeze()
