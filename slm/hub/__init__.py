"""Models of the Hugging Face Hub by name: downloaded (``models``), and published (``publish``)."""
