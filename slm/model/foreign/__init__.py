"""What other people's programs write into a model directory, read as what it means."""
