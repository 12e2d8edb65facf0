"""Options that are gone, and what takes their place: a person who types one reads that.

Tested in tests/slm/test_configuration.py.
"""

_PHASES = "the parts of a run are a list: train.phases=[{bags: 4, until: 0.1}, {seq_len: 128, until: 0.5}]"
REMOVED = {
    "train.superposition": _PHASES,
    "train.superposition_share": _PHASES,
    "train.short_seq_len": _PHASES,
    "train.short_seq_share": _PHASES,
    "train.coherence_stories": "a checkpoint is scored by `slm eval` with eval.coherence_stories=64",
    "distill.cache_top": "a cache keeps the 16 likeliest tokens of each prediction",
    "distill.cache_samples": "a cache keeps 16 tokens drawn from the others",
    "optim.average": "it gained nothing with a rate that falls to zero: save the weights themselves",
    "optim.second_moment": "Muon always evens out the rows of an update",
}
"""By the option's name, a sentence without its end."""
