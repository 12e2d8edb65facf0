"""How fast this machine decodes with weights of each type: measured in a child process, kept in the cache folder."""

from slm.llama.speed.kept import DecodeSpeeds, Shape, decode_speeds

__all__ = ["DecodeSpeeds", "Shape", "decode_speeds"]
