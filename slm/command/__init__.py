"""The command ``slm``: which sub-commands there are, their help, and shell completion.

It hands over to the commands of all rooms by name, without importing them, so that the import rule holds and
``slm --help`` does not wait for torch.
"""
