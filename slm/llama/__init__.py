"""The one door to llama.cpp."""
