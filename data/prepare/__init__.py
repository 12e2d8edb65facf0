"""``slm prepare``: a text read, filtered, divided and tokenized once, in shards, by several processes."""
