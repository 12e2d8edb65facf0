"""The language model, what every stage needs, and the stages: ``slm.data``, ``slm.train``, ``slm.export``,
``slm.serve``, and over their commands ``slm.studio``.

An installed ``slm`` has the stages as folders of its own. In a checkout they lie next to this folder.
"""

import os

from slm.early_interrupt import install

PARENT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder that holds this package. A process started there (``python -m slm...``) imports the same one."""

if os.path.isfile(os.path.join(PARENT, "pyproject.toml")):
    __path__.append(PARENT)

install()
