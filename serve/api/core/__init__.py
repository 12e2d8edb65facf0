"""What all APIs share: the requests that the engine understands, replies in the making, and their streams."""
