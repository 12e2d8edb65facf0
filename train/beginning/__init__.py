"""The parts of a run, each built from its configuration. ``train/start.py`` has the order."""
