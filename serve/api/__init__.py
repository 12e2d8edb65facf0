"""HTTP: connections, keys, limits, routes, errors, metrics, the web pages."""
