"""``make sweep``: many small runs over a grid of options, the losers stopped early, the rest compared."""
