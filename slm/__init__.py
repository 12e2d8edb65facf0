"""The language model, and what every stage needs."""

from slm.early_interrupt import install

install()
