"""Rounding that corrects itself (``rounding=gptq``): each column takes up the errors of those rounded before it."""
