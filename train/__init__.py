"""Training on a CPU: text in, checkpoints out."""

import slm as slm  # first of all: see slm.early_interrupt
from slm.callable import make_callable

make_callable(__name__)
