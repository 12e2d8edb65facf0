"""One module for each kind of file: bytes to documents. ``slm.data.sources.kinds`` has the table."""
