"""A run read from its directory and shown: in the terminal, as curves, as one HTML file."""
