"""How sure a finished model is: its head is calibrated once, at the end of a run."""
