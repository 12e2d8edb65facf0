"""A corpus that ``slm prepare`` has read, filtered, divided and tokenized once: what lies in its folder, and reading it."""
