"""How fast this machine decodes with weights of each type: measured in a child process, kept in the cache folder."""

from slm.llama.speed.kept import DecodeSpeeds, Shape, decode_speeds, forget
from slm.llama.speed.workload import USUAL, Workload

__all__ = ["USUAL", "DecodeSpeeds", "Shape", "Workload", "decode_speeds", "forget"]
