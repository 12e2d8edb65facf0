"""The same tuning with TRL's SFTTrainer, to compare with: ``python train/tools/trl_sft.py train MODEL ...``.

It needs nothing of this project, only ``pip install torch transformers trl``; TRL is no dependency of slm. ``MODEL`` is
a Hugging Face model directory with a chat template, and the conversations are JSON lines with ``messages``, which
``slm tune data=chat data.files=[...]`` reads, too.

``score`` measures a model directory, whoever trained it: the mean nats per scored token over all held-out
conversations, by transformers in f32, each conversation alone. Scored is what the assistant writes, with the token that
ends its turn, as in ``slm tune``. ``train`` measures the same while it trains (with ``--bf16`` in its autocast), and
does not count that time.

Where the comparison could be unfair:

- ``slm tune`` packs its validation and leaves out the last blocks that fill no micro-batch. For its ``val_loss`` to be
  nearly that of ``score``, give ``data.val_files=[HELD_OUT]`` and a large ``train.eval_blocks``. For a figure that
  decides, let ``score`` measure both models.
- ``slm tune`` counts its validations and samples into ``train.max_minutes``. Its few validations cost it some time.
- Tokens are all positions that are no padding, scored or not, here and in ``slm tune`` with the exception that the
  latter counts the padding at the end of its blocks (``slm data-stats`` shows how little that is).
- Both cut conversations behind ``seq_len + 1`` tokens, count each scored token of a step alike, and let the learning
  rate fall to 0 at the end of the time: with ``optim.schedule=linear optim.decay_fraction=1`` in a straight line.
- Conversations are tokenized before the clock starts here, and while training goes on in ``slm tune``.

Tested in tests/train/tools/test_trl_sft.py.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

IGNORED = -100
"""The label of a token that is not scored."""


def conversations(path: str) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; SystemExit for one without ``messages``."""
    found = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                found.append(json.loads(line))
                assert found[-1]["messages"]
            except (ValueError, KeyError, TypeError, AssertionError):
                sys.exit(f"error: {path}:{number} is no conversation: each line must be an object with messages")
    return found or sys.exit(f"error: {path} is empty: give JSON lines with messages")


def labelled(tokenizer: Any, conversation: dict[str, Any], most: int) -> dict[str, list[int]]:
    """``input_ids`` of a conversation, at most ``most``, and their ``labels``, which are ``IGNORED`` but for answers.

    The text is cut where the assistant begins and ends to write, as in generation.
    """
    messages, tools = conversation["messages"], conversation.get("tools")

    def text(count: int, prompt: bool = False) -> str:
        return tokenizer.apply_chat_template(
            messages[:count], tools=tools, add_generation_prompt=prompt, tokenize=False
        )

    ids: list[int] = []
    labels: list[int] = []

    def add(piece: str, scored: bool) -> None:
        new = tokenizer(piece, add_special_tokens=False)["input_ids"]
        ids.extend(new)
        labels.extend(new if scored else [IGNORED] * len(new))

    whole, at = text(len(messages)), 0
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            begin, end = len(text(number, prompt=True)), len(text(number + 1))
            if (last := whole.rfind(tokenizer.eos_token, begin, end)) >= 0:
                end = last + len(tokenizer.eos_token)
            add(whole[at:begin], False)
            add(whole[begin:end], True)
            at = end
    add(whole[at:], False)
    return {"input_ids": ids[:most], "labels": labels[:most]}


def load_rows(tokenizer: Any, path: str, seq_len: int) -> list[dict[str, list[int]]]:
    """The conversations of a file that have a scored token among their first ``seq_len + 1``."""
    rows = [labelled(tokenizer, each, seq_len + 1) for each in conversations(path)]
    return [each for each in rows if any(label != IGNORED for label in each["labels"][1:])]


def held_out_loss(model: Any, rows: list[dict[str, list[int]]]) -> float:
    """Mean nats per scored token over all ``rows``, in the model's own number format."""
    import torch

    nats, count = 0.0, 0
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for row in rows:
            ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
            nats += torch.nn.functional.cross_entropy(logits, labels[1:], reduction="sum", ignore_index=IGNORED).item()
            count += int((labels[1:] != IGNORED).sum())
    model.train(was_training)
    return nats / count


def load(options: argparse.Namespace) -> tuple[Any, Any]:
    """The tokenizer and the model in f32."""
    import torch
    import transformers

    if options.threads:
        torch.set_num_threads(options.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    if not tokenizer.chat_template:
        sys.exit(f"error: {options.model} has no chat template: give a model that has one, both tools start from it")
    return tokenizer, transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)


def score(options: argparse.Namespace) -> dict[str, Any]:
    """The model's held-out loss."""
    tokenizer, model = load(options)
    rows = load_rows(tokenizer, options.held_out, options.seq_len)
    scored = sum(label != IGNORED for row in rows for label in row["labels"][1:])
    return {"model": options.model, "conversations": len(rows), "scored_tokens": scored} | {
        "held_out_nats_per_token": held_out_loss(model, rows)
    }


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Tune with SFTTrainer until the time or the steps are over, and save the model."""
    import torch
    import transformers
    import trl
    from datasets import Dataset

    tokenizer, model = load(options)
    if options.lora:
        import peft

        adapter = peft.LoraConfig(r=options.lora, lora_alpha=2 * options.lora, target_modules="all-linear")
        model = peft.get_peft_model(model, adapter)
    rows = load_rows(tokenizer, options.data, options.seq_len)
    held_out = load_rows(tokenizer, options.held_out, options.seq_len)
    limit = 60 * options.minutes
    clock = {"begin": time.perf_counter(), "scoring": 0.0, "scored_at": 0.0}
    tokens = [0]

    def elapsed() -> float:
        return time.perf_counter() - clock["begin"] - clock["scoring"]

    def done(step: int) -> float:
        return max(elapsed() / limit if limit else 0.0, step / options.max_steps if options.max_steps else 0.0)

    def measure(step: int) -> dict[str, Any]:
        seconds, began = elapsed(), time.perf_counter()
        loss = held_out_loss(model, held_out)
        clock["scoring"] += time.perf_counter() - began
        clock["scored_at"] = seconds
        speed = tokens[0] / seconds if step else 0.0
        print(f"{seconds:7.1f} s  step {step}  {tokens[0]:,} tokens  {speed:,.0f} tokens/s  held out {loss:.4f}")
        return {"seconds": seconds, "steps": step, "tokens": tokens[0], "tokens_per_s": speed} | {
            "held_out_nats_per_token": loss
        }

    class Counted(trl.SFTTrainer):
        def training_step(self, model: Any, inputs: dict[str, Any], *rest: Any, **more: Any) -> Any:
            mask = inputs.get("attention_mask")
            tokens[0] += inputs["input_ids"].numel() if mask is None else int(mask.sum())
            return super().training_step(model, inputs, *rest, **more)

    class Clock(transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            clock["begin"] = time.perf_counter()
            measure(0)

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if done(state.global_step) >= 1:
                control.should_training_stop = True
            elif elapsed() - clock["scored_at"] >= options.score_every:
                measure(state.global_step)

    def rate(step: int) -> float:
        """The learning rate as a share of its peak: up over the warm-up, then down to 0 in a straight line."""
        return min(1.0, (step + 1) / max(1, options.warmup_steps)) * max(0.0, 1 - done(step))

    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=options.lr, weight_decay=0.0, fused=True)
    config = trl.SFTConfig(
        output_dir=options.out,
        use_cpu=True,
        bf16=options.bf16,
        packing=options.packing,
        max_length=options.seq_len + 1,
        per_device_train_batch_size=options.batch,
        gradient_accumulation_steps=options.accumulate,
        gradient_checkpointing=False,
        max_steps=options.max_steps or 10**9,
        seed=options.seed,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Counted(
        model=model,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)),
        callbacks=[Clock()],
    )
    trainer.train()
    result = measure(trainer.state.global_step)
    trainer.save_model(options.out)
    names = ("model", "data", "bf16", "packing", "batch", "accumulate", "seq_len", "lr", "warmup_steps", "seed")
    settings = {name: getattr(options, name) for name in names}
    versions = {each.__name__: each.__version__ for each in (trl, transformers, torch)}
    return result | {"conversations": len(rows), "threads": torch.get_num_threads(), **settings, **versions}


def parse(argv: list[str]) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (commands.add_parser("train"), commands.add_parser("score")):
        command.add_argument("model", help="Hugging Face model directory with a chat template")
        command.add_argument("--held-out", required=True, help="JSON lines of conversations that are scored")
        command.add_argument("--seq-len", type=int, default=1024, help="conversations are cut behind one token more")
        command.add_argument("--threads", type=int, default=0, help="0: as torch chooses")
    add = commands.choices["train"].add_argument
    add("--data", required=True, help="JSON lines of conversations to train on")
    add("--out", required=True, help="folder for the trained model")
    add("--minutes", type=float, default=0, help="training time; scoring is not counted; 0: no limit")
    add("--max-steps", type=int, default=0, help="optimizer steps; 0: no limit")
    add("--bf16", action="store_true", help="autocast to bf16; otherwise f32")
    add("--lora", type=int, default=0, help="rank of an adapter of all linear layers (needs peft); 0: all weights")
    add("--packing", action="store_true", help="several conversations in a sequence, best fit first")
    add("--batch", type=int, default=8, help="conversations (with --packing: sequences) in a pass")
    add("--accumulate", type=int, default=1, help="passes in an optimizer step")
    add("--lr", type=float, default=1e-3, help="peak learning rate of AdamW")
    add("--warmup-steps", type=int, default=20)
    add("--score-every", type=float, default=60, help="seconds of training between two scorings")
    add("--seed", type=int, default=1234)
    options = parser.parse_args(argv)
    if options.command == "train" and not (options.minutes or options.max_steps):
        parser.error("give --minutes or --max-steps")
    return options


if __name__ == "__main__":
    chosen = parse(sys.argv[1:])
    print(json.dumps(train(chosen) if chosen.command == "train" else score(chosen)))
