"""What runs in the engine process: scheduling, decoding, sampling, text. Only plain data goes in and out (messages)."""
