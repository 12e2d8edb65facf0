"""What a run will give: the law between size, text and loss, and the forecast of a run from its own curve."""
