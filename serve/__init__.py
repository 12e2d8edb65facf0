"""An OpenAI-compatible server over a GGUF file."""

import slm as slm  # first of all: see slm.early_interrupt
