"""Conversations from files: records of any layout, and what is learned of them."""
