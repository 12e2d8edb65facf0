"""Documents that repeat earlier ones: in memory for a part of a corpus, on disk for one of any size."""
