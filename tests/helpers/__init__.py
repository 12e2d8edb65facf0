"""What several tests use: small models, small runs, commands as processes, faults."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
