"""The layers of the architectures."""
