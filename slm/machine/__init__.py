"""What this machine is and can do: cores, memory, instruction sets, compiler."""
