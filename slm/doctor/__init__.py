"""``make doctor``: what this machine has, what will be used of it, and what to install or change for more."""
