"""Tool calls in a model's own form: what they look like, the grammar that forces them, and reading them in a reply."""
