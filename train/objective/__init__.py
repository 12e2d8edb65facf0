"""What a run minimizes: cross-entropy, or a loss of pairs of answers."""
