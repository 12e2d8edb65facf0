"""A corpus that ``slm prepare`` has made of a text: what lies in its folder, and reading it."""
