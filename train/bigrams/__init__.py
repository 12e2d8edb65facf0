"""First weights from bigrams: embedding and head begin as a low-rank model of which token follows which."""
