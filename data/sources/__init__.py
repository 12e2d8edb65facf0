"""Where documents come from: files, the Hub, the embedded stories; filtered, deduplicated, mixed."""
