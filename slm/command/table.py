"""The sub-commands of ``slm``, in one table. A new command needs a row here and nothing else.

Tested in tests/slm/command/test_main.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Command:
    """One sub-command."""

    module: str
    """What ``python -m`` would run."""
    config: str
    """Its options: ``configs/<config>.yaml``."""
    summary: str
    """One line, lower case, for the list of commands."""
    examples: tuple[tuple[str, str], ...]
    """The words after the sub-command's name, and what they do."""
    defaults: tuple[str, ...] = ()
    """``key=value`` words that hold where the person gives no such key."""


NEWEST = "model=runs/latest"
SEVERAL = ("train", "tune", "qat")
"""Commands that run in several processes, too: ``nproc=``, ``nnodes=``, ``main=``."""

COMMANDS: dict[str, Command] = {
    "demo": Command(
        module="slm.command.demo",
        config="train",
        summary="train, export, evaluate and run a small model, in minutes",
        examples=(
            ("", "at most seven minutes of training on generated stories, then the whole way to a quantized model"),
            ("train.max_minutes=2", "the same with less training; options are those of slm train"),
        ),
    ),
    "demo-chat": Command(
        module="slm.command.demo_chat",
        config="tune",
        summary="tune the demo's model so that it answers: five more minutes",
        examples=(("", "tune runs/demo, export it, ask it 60 held-out questions, and show one more"),),
    ),
    "train": Command(
        module="slm.train",
        config="train",
        summary="train a model: preset=tiny|10m|50m|125m|350m, or budget=8h",
        examples=(
            ("preset=10m name=mine", "train the 10m preset on its text; the same command continues a stopped run"),
            (
                "budget=8h name=mine data=local 'data.files=[notes/*.md,books/]'",
                "your own text, the best model by then",
            ),
            ("preset=10m name=mine data=local 'data.files=[notes/*.md,books/]'", "your own text, this size"),
            ("preset=125m init_from=path/to/model data=local 'data.files=[mine.jsonl]'", "go on from a model"),
            ("nproc=2 preset=125m name=mine", "two processes (nnodes= and main= for several machines)"),
        ),
    ),
    "tune": Command(
        module="slm.train.tune",
        config="tune",
        summary="tune a model on conversations, so that it answers",
        examples=(
            ("base=runs/mine data=chat 'data.files=[chats.jsonl]'", "OpenAI messages, ShareGPT, Alpaca or prompts"),
            ("base=runs/mine", "the embedded conversations about stories (slm exam tests the result)"),
            ("base=path/to/model data=chat 'data.files=[chats.jsonl]'", "a downloaded Hugging Face model"),
            ("base=org/name data=chat 'data.files=[chats.jsonl]'", "a model of the Hugging Face Hub"),
            ("nproc=2 base=runs/mine", "two processes (nnodes= and main= for several machines)"),
        ),
    ),
    "qat": Command(
        module="slm.train.tune.qat",
        config="qat",
        summary="go on with a trained model for a quantized type (quantization-aware training)",
        examples=(
            ("base=runs/mine", "a tenth of the base's steps for q4_0; slm export run=runs/mine-q4_0 quant=q4_0 then"),
            ("base=runs/mine train.qat=tq2_0 train.max_steps=500", "another type, another length"),
            ("base=path/to/model data=local 'data.files=[mine.jsonl]'", "a downloaded Hugging Face model"),
        ),
    ),
    "sweep": Command(
        module="slm.train.sweep",
        config="sweep",
        summary="train a grid of small runs, stop the losers early, compare the rest",
        examples=(
            ("preset=tiny name=rates optim.lr=0.01,0.02,0.05 train.max_steps=200", "three learning rates"),
            ("optim.lr=0.02,0.05 model.d_model=256,512 train.seed=1,2", "eight runs; the same command goes on"),
            ("sweep.range_test=true", "one run whose learning rate grows until the loss diverges"),
        ),
    ),
    "watch": Command(
        module="slm.train.report.watch",
        config="watch",
        summary="follow a run from another terminal",
        examples=(("run=runs/mine", "progress, losses, speed, time left, the last sample"),),
    ),
    "report": Command(
        module="slm.train.report.html",
        config="report",
        summary="write a run's report, or compare several, as one HTML file",
        examples=(
            ("runs=runs/mine", "report.html of one run"),
            ("runs=runs/a,runs/b out=compare.html", "two runs next to each other"),
        ),
    ),
    "export": Command(
        module="slm.export",
        config="export",
        summary="write GGUF files, quantized and proven: quant=q4_k_m,q8_0",
        examples=(
            ("run=runs/mine", "one q4_k_m file in runs/mine/gguf"),
            ("run=path/to/model quant=q4_k_m,q8_0", "two types of a downloaded Hugging Face model"),
            ("run=runs/mine format=onnx", "an ONNX model for onnxruntime (needs slm[onnx]); format=pt2: torch.export"),
            ("run=org/name", "a model of the Hugging Face Hub, downloaded; its files go to models/org/name/gguf"),
        ),
    ),
    "verify": Command(
        module="slm.export.verify",
        config="verify",
        summary="check exported files against the SHA-256 that their export recorded",
        examples=(("run=runs/mine", "a line for each file; exit status 1 if one is damaged"),),
    ),
    "publish": Command(
        module="slm.hub.publish",
        config="publish",
        summary="upload a run to the Hugging Face Hub: checkpoint, GGUF files, model card",
        examples=(
            ("run=runs/mine to=org/name", "show what would go up, and write the model card"),
            ("run=runs/mine to=org/name dry_run=false", "upload it (log in first: hf auth login)"),
        ),
    ),
    "eval": Command(
        module="slm.evaluate",
        config="evaluate",
        summary="measure perplexity of the checkpoint and its GGUF files, or run tasks",
        examples=(
            ("run=runs/mine eval.text=runs/mine/validation.txt", "on text that the run did not see"),
            ("run=runs/mine", "on WikiText-2's test set, from the Hub"),
            ("run=runs/mine tasks=hellaswag,arc_easy,blimp", "tasks of lm-evaluation-harness (needs slm[tasks])"),
        ),
    ),
    "exam": Command(
        module="slm.evaluate.exam",
        config="exam",
        summary="ask a model questions with known answers (yours, or embedded ones) and count the right replies",
        examples=(
            ("run=runs/mine-chat data=my.jsonl", "your questions, to the checkpoint and each of its GGUF files"),
            ("run=model.gguf data=my.jsonl score=contains show=10", "one file; print ten wrong replies"),
            ("run=runs/mine-chat questions=500", "the embedded questions about stories"),
        ),
    ),
    "serve": Command(
        module="slm.serve",
        config="serve",
        summary="serve a model over OpenAI's API",
        examples=(
            ("model=runs/mine port=8080", "completions, chat, embeddings, a page at http://127.0.0.1:8080/"),
            ("model=model.gguf host=0.0.0.0 serve.api_keys=SECRET", "any GGUF file, for other machines, with a key"),
            ("model=org/name:Q4_K_M", "a GGUF file of a repository on the Hugging Face Hub, downloaded"),
        ),
        defaults=(NEWEST,),
    ),
    "chat": Command(
        module="slm.serve.terminal",
        config="terminal",
        summary="chat with a model in the terminal",
        examples=(
            ("model=runs/mine", "a conversation (a model without a chat template continues your text)"),
            ("model=runs/mine prompt='Once upon a time' max_tokens=200", "one reply"),
        ),
        defaults=(NEWEST,),
    ),
    "studio": Command(
        module="slm.studio",
        config="studio",
        summary="open the whole way as one page in the browser: train, tune, export, chat",
        examples=(
            ("", "http://127.0.0.1:8765, for this machine only; runs are in runs/ of the current folder"),
            ("folders=[~/texts,~/.lmstudio/models]", "more folders that the page may read"),
            ("host=0.0.0.0 password=SECRET open=false", "for other machines, with a password"),
        ),
    ),
    "plan": Command(
        module="slm.train.tools.plan",
        config="plan",
        summary="show what a run would cost, or what a time would give: sizes, loss, memory, price",
        examples=(
            ("budget=8h data=local 'data.files=[books/]'", "the sizes that eight hours could train, and their losses"),
            ("preset=125m tokens_per_s=800", "the time that its schedule takes at 800 tokens/s"),
        ),
    ),
    "data-stats": Command(
        module="slm.train.tools.data_stats",
        config="data_stats",
        summary="count documents, tokens and duplicates of a text",
        examples=(("data=local 'data.files=[notes/*.md]'", "before you train on it"),),
    ),
    "doctor": Command(
        module="slm.doctor",
        config="doctor",
        summary="show what this machine has, what slm uses, and what to install",
        examples=(("", "cores, instruction sets, measured rates, compiler, build of llama.cpp"),),
    ),
    "bench-train": Command(
        module="slm.train.tools.bench",
        config="bench_train",
        summary="measure training speed against Hugging Face's Trainer and the GEMM peak",
        examples=(("preset=10m", "needs transformers and accelerate for the Trainer"),),
    ),
    "bench-recipe": Command(
        module="slm.train.bench_recipe",
        config="bench_recipe",
        summary="compare models after equal time: ours, Hugging Face's Trainer, nanochat",
        examples=(
            ("preset=10m minutes=10 data=local 'data.files=[a.parquet]' 'data.val_files=[b.parquet]'", "your own text"),
            ("preset=10m bench.nanochat=path/to/nanochat", "nanochat's own scripts, too, where you have a checkout"),
        ),
    ),
    "bench-serve": Command(
        module="slm.serve.bench",
        config="bench_serve",
        summary="measure the server against llama.cpp's limit and other servers",
        examples=(("model=runs/mine 'bench.clients=[1,4]'", "with one client and with four"),),
        defaults=(NEWEST,),
    ),
    "bench-quant": Command(
        module="slm.export.bench",
        config="bench_quant",
        summary="compare size, quality and speed of quantization types",
        examples=(("run=runs/mine quant=q8_0,q4_k_m", "two types next to the unquantized file"),),
    ),
}
