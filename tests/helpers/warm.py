"""The last module that the fork server imports (tests/helpers/programs.py): what its processes would all do again.

Hydra's files of the configurations that most small runs have are read. What was imported is no garbage: no process
looks through it for some, which would also copy every page of it.
"""

import gc

from slm.configuration import load_config
from tests.helpers.small_run import OPTIONS

load_config("train", list(OPTIONS))
gc.collect()
gc.freeze()
