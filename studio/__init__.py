"""One local page over the commands of ``slm``: it starts them as processes and reads their files and last lines."""
