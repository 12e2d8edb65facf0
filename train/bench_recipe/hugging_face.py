"""Hugging Face's Trainer with our shape, batch and number format, as ``make bench-train`` and ``make bench-recipe`` use
it.

Tested in tests/train/bench_recipe/test_bench_recipe.py, tests/train/tools/test_bench.py.
"""

from pathlib import Path
from typing import Any

from slm.model.config import ModelConfig
from slm.train.config import TrainConfig


def new_model(shape: ModelConfig) -> Any:
    """A model of this shape with first weights by transformers."""
    import transformers

    values = {k: v for k, v in shape.to_hf().items() if k not in ("architectures", "torch_dtype", "rope_theta")}
    kind = getattr(transformers, shape.traits.hf_class)
    return kind(kind.config_class(**values))


def make_trainer(
    model: Any,
    rows: Any,
    train: TrainConfig,
    folder: Path,
    *,
    callback: Any,
    optimizers: tuple[Any, Any] = (None, None),
    **arguments: Any,
) -> Any:
    """A Trainer on this machine's CPU that logs and saves nothing.

    ``optimizers``: optimizer and schedule, else its own. ``arguments``: more of its ``TrainingArguments``, which win
    over those that follow from ``train``.
    """
    import transformers

    from slm.train.environment import number_format

    ours: dict[str, Any] = dict(
        output_dir=str(folder),
        use_cpu=True,
        bf16=number_format(train)[0] == "bf16",
        per_device_train_batch_size=train.micro_batch,
        gradient_accumulation_steps=train.grad_accum,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    return transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(**(ours | arguments)),
        train_dataset=rows,
        optimizers=optimizers,
        callbacks=[callback],
    )
