"""From a checkpoint to GGUF files that provably compute the same."""

import slm as slm  # first of all: see slm.early_interrupt
from slm.callable import make_callable

make_callable(__name__)
