"""How fast conversations are read and written by a template: ``python tests/data/chat/measure_conversations.py``.

Records of three layouts are made and read from a file, then rendered and tokenized. Speeds are per second of processor
time.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from slm.data.chat.story_chat import conversation
from slm.data.chat.tokens import ChatEncoder, with_chatml
from slm.data.sources.conversations import chat_files, chat_records
from tests.helpers.chat_model import base_tokenizer

NEEDED = 5_000
"""Tokens a second: what a model of 10 million parameters learns from on two cores."""


def openai(number: int) -> dict:
    return conversation(1, number)


def sharegpt(number: int) -> dict:
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    turns = [{"from": names[each["role"]], "value": each["content"]} for each in openai(number)["messages"]]
    return {"id": number, "conversations": turns}


def with_calls(number: int) -> dict:
    tool = {"name": "look_up", "description": "A story.", "parameters": {"properties": {"n": {"type": "integer"}}}}
    asked, answered = openai(number)["messages"][-2:]
    call = {"id": "call00001", "type": "function", "function": {"name": "look_up", "arguments": f'{{"n": {number}}}'}}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call00001", "content": asked["content"]}
    return {"messages": [asked, calling, result, answered], "tools": [{"type": "function", "function": tool}]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    encoder = ChatEncoder(with_chatml(base_tokenizer(2048)))
    print("| records | tokens | records/s read | tokens/s read | with template and tokenizer | next to the need |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for make in (openai, sharegpt, with_calls):
            path = Path(folder) / "a.jsonl"
            path.write_text("".join(json.dumps(make(number)) + "\n" for number in range(arguments.records)))
            best, whole, tokens = float("inf"), float("inf"), 0
            for _ in range(arguments.repeats):
                begin = time.process_time()
                read = (chat_files.to_conversation(each, stop=True) for each in chat_records.read(str(path)))
                documents = [found[1] for found in read if found]
                middle = time.process_time()
                tokens = sum(len(encoder.conversation(each)[0]) for each in documents)
                best, whole = min(best, middle - begin), min(whole, time.process_time() - begin)
            print(
                f"| {make.__name__} | {tokens:,} | {len(documents) / best:,.0f} | {tokens / best:,.0f} "
                f"| {tokens / whole:,.0f} | {tokens / whole / NEEDED:,.0f} x |",
                flush=True,
            )


if __name__ == "__main__":
    main()
