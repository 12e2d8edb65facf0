"""What the page asks for, a module for each screen."""
