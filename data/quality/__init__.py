"""Which documents are good enough to be learned, a filter a module. None of them knows where documents come from."""
