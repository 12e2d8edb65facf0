"""What every run does around a step: records, validations, checkpoints."""
