"""From the time that a run may take to its options: this machine's speed, the text's size, the model that fits both."""
