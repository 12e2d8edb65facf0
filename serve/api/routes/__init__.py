"""The handlers of the routes; ``table.py`` lists the paths."""
