"""What a run's text is: which files are taken, what is left out of them and why."""
