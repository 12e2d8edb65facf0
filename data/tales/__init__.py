"""The embedded corpus: small children's stories from a seeded grammar."""
