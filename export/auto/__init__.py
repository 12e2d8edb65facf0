"""A type per tensor, chosen for a goal: from what each tensor's rounding does to the predictions, and what it costs."""
