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
    bare: tuple[str, ...] = ()
    """What a word without ``=`` may be: preset, model, local and chat (text for training, conversations), questions,
    text, quant (types), type (one), repository, prompt, out (a folder to write, behind the model).
    ``slm.command.grammar`` reads them."""
    model_key: str | None = None
    """The module's option that ``model=`` stands for."""
    needs_model: bool = False
    """Whether a command line without a model is refused at once."""
    several_models: str | None = None
    """The module's option for the second model and more; the same as ``model_key``: one list for all."""


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
            ("train.max_minutes=2", "the same with less training; it takes the options of slm train"),
        ),
    ),
    "demo-chat": Command(
        module="slm.command.demo_chat",
        config="tune",
        summary="tune the demo's model so that it answers: five more minutes",
        examples=(("", "tune runs/demo, export it, ask it 60 held-out questions, and show one more"),),
        model_key="base",
    ),
    "train": Command(
        module="slm.train",
        config="train",
        summary="train a model: preset=tiny|10m|50m|125m|350m, or budget=8h",
        examples=(
            (
                "notes/ budget=8h name=mine",
                "your own text, the best model by then; typed again, it resumes",
            ),
            ("10m notes/ books/ name=mine", "your own text, this size"),
            ("10m name=mine", "the 10m preset on its own text"),
            ("path/to/model mine.jsonl budget=1h", "start from a model: a run, a folder, org/name on the Hub"),
            ("125m name=mine nproc=2", "two processes (nnodes= and main= for several machines)"),
        ),
        bare=("preset", "local", "model"),
        model_key="init_from",
    ),
    "tune": Command(
        module="slm.train.tune",
        config="tune",
        summary="tune a model on conversations, so that it answers",
        examples=(
            ("mine chats.csv", "runs/mine; tables of questions and answers, OpenAI messages, ShareGPT, Alpaca"),
            ("mine", "the embedded conversations about stories (slm exam tests the result)"),
            ("path/to/model chats.jsonl", "a downloaded Hugging Face model"),
            ("org/name chats.jsonl", "a model of the Hugging Face Hub"),
            ("mine chats.jsonl nproc=2", "two processes (nnodes= and main= for several machines)"),
        ),
        bare=("model", "chat"),
        model_key="base",
        needs_model=True,
    ),
    "qat": Command(
        module="slm.train.tune.qat",
        config="qat",
        summary="train a model further for a quantized type (quantization-aware training)",
        examples=(
            ("mine", "a tenth of the base's steps for q4_0; slm export mine-q4_0 q4_0 then"),
            ("mine tq2_0 train.max_steps=500", "another type, another length"),
            ("path/to/model mine.jsonl", "a downloaded Hugging Face model"),
        ),
        bare=("model", "type", "local"),
        model_key="base",
        needs_model=True,
    ),
    "sweep": Command(
        module="slm.train.sweep",
        config="sweep",
        summary="train a grid of small runs, stop the losers early, compare the rest",
        examples=(
            ("tiny name=rates optim.lr=0.01,0.02,0.05 train.max_steps=200", "three learning rates"),
            ("optim.lr=0.02,0.05 model.d_model=256,512 train.seed=1,2", "eight runs; the same command resumes"),
            ("sweep.range_test=true", "one run with a learning rate that grows until the loss diverges"),
        ),
        bare=("preset", "local", "model"),
        model_key="init_from",
    ),
    "watch": Command(
        module="slm.train.report.watch",
        config="watch",
        summary="follow a run from another terminal",
        examples=(("mine", "progress, losses, speed, time left, the last sample"),),
        bare=("model",),
        model_key="run",
    ),
    "report": Command(
        module="slm.train.report.html",
        config="report",
        summary="write a run's report, or compare several, as one HTML file",
        examples=(
            ("mine", "report.html of one run"),
            ("a b out=compare.html", "two runs next to each other"),
        ),
        bare=("model",),
        model_key="runs",
        several_models="runs",
    ),
    "export": Command(
        module="slm.export",
        config="export",
        summary="write GGUF files, quantized and proven: quant=q4_k_m,q8_0",
        examples=(
            ("mine", "one q4_k_m file in runs/mine/gguf"),
            ("path/to/model q4_k_m q8_0", "two types of a downloaded Hugging Face model"),
            ("mine format=onnx", "an ONNX model for onnxruntime (needs slm[onnx]); format=pt2: torch.export"),
            ("org/name", "a model of the Hugging Face Hub, downloaded; its files go to models/org/name/gguf"),
        ),
        bare=("model", "quant"),
        model_key="run",
    ),
    "checkpoint": Command(
        module="slm.command.checkpoint",
        config="checkpoint",
        summary="read a GGUF file back as a Hugging Face model directory, compared with llama.cpp",
        examples=(
            ("model.gguf folder", "weights, configuration, tokenizer and chat template"),
            ("ollama:smollm2:135m folder", "a model that Ollama has downloaded (lmstudio:NAME: LM Studio)"),
        ),
        bare=("model", "out"),
        model_key="model",
    ),
    "verify": Command(
        module="slm.export.verify",
        config="verify",
        summary="check exported files against the SHA-256 that their export recorded",
        examples=(("mine", "a line for each file; exit status 1 if one is damaged"),),
        bare=("model",),
        model_key="run",
    ),
    "publish": Command(
        module="slm.hub.publish",
        config="publish",
        summary="upload a run to the Hugging Face Hub: checkpoint, GGUF files, model card",
        examples=(
            ("mine org/name", "show what would go up, and write the model card"),
            ("mine org/name dry_run=false", "upload it (log in first: hf auth login)"),
        ),
        bare=("model", "repository"),
        model_key="run",
    ),
    "eval": Command(
        module="slm.evaluate",
        config="evaluate",
        summary="measure perplexity of the checkpoint and its GGUF files, or run tasks",
        examples=(
            ("mine", "on the run's own held-out text"),
            ("mine book.txt", "on this text"),
            ("mine wikitext", "on WikiText-2's test set, from the Hub"),
            ("mine tasks=hellaswag,arc_easy,blimp", "tasks of lm-evaluation-harness (needs slm[tasks])"),
        ),
        bare=("model", "text"),
        model_key="run",
    ),
    "exam": Command(
        module="slm.evaluate.exam",
        config="exam",
        summary="ask a model questions with known answers (yours, or embedded ones) and count the right replies",
        examples=(
            ("mine-chat my.csv", "your questions, to the checkpoint and each of its GGUF files"),
            ("model.gguf my.csv score=contains show=10", "one file; print ten wrong replies"),
            ("mine-chat questions=500", "the embedded questions about stories"),
        ),
        bare=("model", "questions"),
        model_key="run",
    ),
    "serve": Command(
        module="slm.serve",
        config="serve",
        summary="serve a model over OpenAI's API",
        examples=(
            ("mine port=8080", "completions, chat, embeddings, a page at http://127.0.0.1:8080/"),
            ("model.gguf host=0.0.0.0 serve.api_keys=SECRET", "any GGUF file, for other machines, with a key"),
            ("org/name:Q4_K_M", "a GGUF file of a repository on the Hugging Face Hub, downloaded"),
        ),
        defaults=(NEWEST,),
        bare=("model",),
        model_key="model",
        several_models="serve.models",
    ),
    "chat": Command(
        module="slm.serve.terminal",
        config="terminal",
        summary="chat with a model in the terminal",
        examples=(
            ("mine", "a conversation (a model without a chat template continues your text)"),
            ("mine 'Once upon a time' max_tokens=200", "one reply"),
        ),
        defaults=(NEWEST,),
        bare=("model", "prompt"),
        model_key="model",
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
            ("books/ budget=8h", "the sizes that eight hours could train, and their losses"),
            ("125m tokens_per_s=800", "the time that its schedule takes at 800 tokens/s"),
        ),
        bare=("preset", "local", "model"),
        model_key="init_from",
    ),
    "data-stats": Command(
        module="slm.train.tools.data_stats",
        config="data_stats",
        summary="count documents, tokens and duplicates of a text",
        examples=(("notes/", "before you train on it"),),
        bare=("preset", "local"),
    ),
    "prepare": Command(
        module="slm.train.tools.prepare",
        config="prepare",
        summary="read, filter, divide and tokenize a large text once, for any number of runs",
        examples=(
            ("10m books/ out=corpus", "on all cores; typed again, it resumes where it was stopped"),
            ("books/ out=corpus tokenizer=gpt2 data.dedup=exact", "with another tokenizer, without duplicates"),
        ),
        bare=("preset", "local"),
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
        examples=(("10m", "needs transformers and accelerate for the Trainer"),),
        bare=("preset", "local", "model"),
        model_key="init_from",
    ),
    "bench-recipe": Command(
        module="slm.train.bench_recipe",
        config="bench_recipe",
        summary="compare models after equal time: ours, Hugging Face's Trainer, nanochat",
        examples=(
            ("10m a.parquet data.val_files=b.parquet minutes=10", "your own text"),
            ("10m bench.nanochat=path/to/nanochat", "nanochat's own scripts, too, where you have a checkout"),
        ),
        bare=("preset", "local"),
    ),
    "bench-serve": Command(
        module="slm.serve.bench",
        config="bench_serve",
        summary="measure the server against llama.cpp's limit and other servers",
        examples=(("mine bench.clients=1,4", "with one client and with four"),),
        defaults=(NEWEST,),
        bare=("model",),
        model_key="model",
    ),
    "bench-quant": Command(
        module="slm.export.bench",
        config="bench_quant",
        summary="compare size, quality and speed of quantization types",
        examples=(("mine q8_0 q4_k_m", "two types next to the unquantized file"),),
        bare=("model", "quant"),
        model_key="run",
    ),
}
