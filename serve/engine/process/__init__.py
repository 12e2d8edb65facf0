"""The engine as a process: its loop, and how commands reach it and events leave it."""
