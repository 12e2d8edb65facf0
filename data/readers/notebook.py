"""Jupyter notebooks as text: their cells in order, code between fences; outputs are left out.

Tested in tests/data/readers/test_html.py.
"""

import json
from typing import Any

from slm.data.bad_records import BadRecordError
from slm.data.readers.bounds import OneDocument


def text(data: bytes) -> str:
    """The text of a notebook's cells: Markdown as it is, code as Markdown writes it."""
    try:
        notebook = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRecordError("Jupyter notebook: damaged", detail=error) from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise BadRecordError("Jupyter notebook: of a format before 4 (save it anew)")
    language = _language(notebook.get("metadata"))
    found = []
    for cell in cells:
        source = cell.get("source", "") if isinstance(cell, dict) else ""
        source = "".join(map(str, source)) if isinstance(source, list) else str(source)
        if source.strip():
            found.append(f"```{language}\n{source}\n```" if cell.get("cell_type") == "code" else source)
    return "\n\n".join(found)


def _language(metadata: Any) -> str:
    kernel = metadata.get("kernelspec") if isinstance(metadata, dict) else None
    return str(kernel.get("language") or "") if isinstance(kernel, dict) else ""


READER = OneDocument(text)
