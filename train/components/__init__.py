"""What some runs add to the loop, a file each. The trainer knows none of them by name."""
