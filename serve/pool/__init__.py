"""The parent's side of the engine processes: which models are loaded, and how requests reach them."""
