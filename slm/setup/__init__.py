"""What ``make setup`` does: check the machine, make or repair the virtual environment, install.

It runs on the system's Python before anything is installed, so it uses the standard library alone.
"""
