"""One module for each kind of file: bytes to documents. ``data.sources.kinds`` has the table."""
