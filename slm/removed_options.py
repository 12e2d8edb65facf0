"""Options that are gone, and what takes their place: a person who types one reads that.

Tested in tests/slm/test_configuration.py.
"""

import copy
from typing import Any

_PHASES = "the parts of a run are a list: train.phases=[{bags: 4, until: 0.1}, {seq_len: 128, until: 0.5}]"
_OTHER_RATES = "optim.other_lr_scale multiplies Muon's rates of embedding, head and gains"
_TABLE_DECAY = "optim.table_decay is the share that embedding and head lose in a step at the peak rate"
_FIRST_WEIGHTS = "a new model's first weights follow from the optimizer"
_OF_RECIPE = "it is a constant of each optimizer, which no recipe varied"
_SHAPE = "it is a constant of new models, which no recipe varied"
REMOVED = {
    "train.superposition": _PHASES,
    "train.superposition_share": _PHASES,
    "train.short_seq_len": _PHASES,
    "train.short_seq_share": _PHASES,
    "train.coherence_stories": "a checkpoint is scored by `slm eval` with eval.coherence_stories=64",
    "train.background_save": "checkpoints are always written while training goes on",
    "train.pin": "processes on one machine always divide the cores that taskset leaves them",
    "train.qat_share": "give +components.quantization.share=0.1",
    "train.qat_least_steps": "give +components.quantization.least_steps=50",
    "train.qat_rounding": "columns always make up for each other's errors (gptq) where the type allows it",
    "train.scored_questions": "up to 50 questions are scored",
    "train.sample_questions": "a run on conversations shows three held-out questions with its answers",
    "train.sample_tokens": "a text sample has 96 tokens; train.sample_prompts=[] writes none",
    "train.minutes_of": "train.max_minutes counts all from the start of the process to its end",
    "train.checkpoint_minutes": "a checkpoint is due after 15 minutes without one, whatever the steps",
    "train.log_every": "every 10 steps are recorded, and every step where they are few or slow",
    "train.compile": "give train.kernels=eager for neither kernels nor torch.compile",
    "train.reshard": "give resume=reshard",
    "train.check_export": "what export would refuse is refused before training",
    "lora.alpha": "an adapter counts twice, whatever its rank: change optim.lr",
    "preference.label_smoothing": "every pair is taken to be the right way round",
    "distill.temperature": "logits are not divided: a temperature of 1",
    "train.sample_temperature": "samples are drawn at 0.8",
    "distill.cache_top": "a cache keeps the 16 likeliest tokens of each prediction",
    "distill.cache_samples": "a cache keeps 16 tokens drawn from the others",
    "optim.average": "it gained nothing with a rate that falls to zero: save the weights themselves",
    "optim.second_moment": "Muon always evens out the rows of an update",
    "optim.head_lr": _OTHER_RATES,
    "optim.tied_lr": _OTHER_RATES,
    "optim.gain_lr": _OTHER_RATES,
    "optim.embed_decay": _TABLE_DECAY,
    "optim.head_decay": _TABLE_DECAY,
    "optim.eps": _OF_RECIPE,
    "optim.momentum": _OF_RECIPE,
    "optim.ns_steps": _OF_RECIPE,
    **{
        f"optim.init_{name}": _FIRST_WEIGHTS
        for name in ("embed_std", "head_std", "tied_std", "matrix_std", "output_gain", "qk_gain")
    },
    "model.norm_eps": _SHAPE,
    "model.rope_theta": _SHAPE,
    "model.head_dim": "the heads of new models are 64 wide: change model.n_heads",
    "model.conv_layers": "every other layer of a new lfm2 model has a short convolution",
    "model.conv_width": _SHAPE,
    "model.vocab_multiple": _SHAPE,
    "logger.name": "give logger=none or logger=wandb",
    "logger.project": "WANDB_PROJECT in the environment names the project",
}
"""By the option's name, a sentence without its end."""
_KERNELS = {
    "avx512int8": ("avx512", "int8"),
    "avx512int16": ("avx512", "int16"),
    "avxvnniint8": ("avx2", "int8"),
    "avxvnniint16": ("avx2", "int16"),
    "avx2int16": ("avx2", "int16"),
}
"""Former names of kernels: the instruction set and the precision."""
REMOVED_VALUES = {
    "optim=classic": "give optim=adamw",
    "optim.schedule=wsd": "give optim.schedule=linear, which is constant and then falls, too",
    **{
        f"train.kernels={name}": f"give train.kernels={instructions} train.precision={precision}"
        for name, (instructions, precision) in _KERNELS.items()
    },
}
"""By ``option=value``, the same."""


def without_removed(saved: dict[str, Any]) -> dict[str, Any]:
    """The configuration that an earlier version has saved, as a copy with the options that there are now.

    What was removed is left out: it is a constant now. What changed its name has the new one.
    """
    config = copy.deepcopy(saved)
    if isinstance(logger := config.get("logger"), dict):
        config["logger"] = logger.get("name", "none")
    train = config.get("train")
    if isinstance(train, dict) and (named := _KERNELS.get(str(train.get("kernels")))):
        train["kernels"], train["precision"] = named
    optim = config.get("optim")
    if isinstance(optim, dict) and optim.get("schedule") == "wsd":
        optim["schedule"] = "linear"
    for name in REMOVED:
        group, _, key = name.partition(".")
        if isinstance(options := config.get(group), dict):
            options.pop(key, None)
    return config
