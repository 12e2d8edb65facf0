"""States of slots, kept apart from the cache: some in memory, whole slots in files."""
