"""Text and tokens: where documents come from and how they become blocks of token ids."""
