"""Optimizers: AdamW, Muon, and the state of either by parameter name."""
