"""llama-server's own routes over the same models: /completion, /infill, /props, /slots, /rerank and more."""
