"""Commands around a training run: benchmark, plan, data statistics."""
