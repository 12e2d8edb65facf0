"""Tuning a trained model on conversations."""
