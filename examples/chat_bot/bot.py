"""A conversation with a served model, streamed. The server drops the oldest turns when it gets too long.

python examples/chat_bot/bot.py --system "You are a helpful gardener."
"""

import argparse
import os
import sys

from openai import APIError, BadRequestError, OpenAI


class Bot:
    """Keeps the messages of one conversation."""

    def __init__(self, client: OpenAI, system: str | None, max_tokens: int) -> None:
        self._client, self._max_tokens = client, max_tokens
        self._system = [{"role": "system", "content": system}] if system else []
        self._turns: list[dict[str, str]] = []

    def answer(self, text: str) -> str:
        """Sends ``text`` behind the conversation so far, prints the reply as it comes, and returns it."""
        self._turns.append({"role": "user", "content": text})
        try:
            reply = self._stream()
        except BadRequestError:
            self._turns.pop()
            raise
        self._turns.append({"role": "assistant", "content": reply})
        return reply

    def _stream(self) -> str:
        chunks = self._client.chat.completions.create(
            model="default",
            messages=self._system + self._turns,
            max_tokens=self._max_tokens,
            stream=True,
            extra_body={"truncation": "auto"},
        )
        parts = []
        for chunk in chunks:
            # Not a field of OpenAI's: it stands in the first chunk.
            n_dropped = (chunk.model_extra or {}).get("dropped_messages")
            if n_dropped:
                print(f"(the oldest {n_dropped} messages are forgotten)", file=sys.stderr)
            part = chunk.choices[0].delta.content if chunk.choices else None
            if part:
                parts.append(part)
                print(part, end="", flush=True)
        print(flush=True)
        return "".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="http://localhost:8080/v1", help="the server (default: %(default)s)")
    parser.add_argument("--system", help="what the model is told before the conversation")
    parser.add_argument("--max-tokens", type=int, default=256, help="most tokens of a reply (default: %(default)s)")
    options = parser.parse_args()
    client = OpenAI(base_url=options.url, api_key=os.environ.get("SLM_API_KEY", "none"))
    bot = Bot(client, options.system, options.max_tokens)
    while True:
        try:
            text = input("you> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if not text:
            continue
        try:
            bot.answer(text)
        except KeyboardInterrupt:
            print("\n(stopped)", file=sys.stderr)
        except APIError as error:
            print(f"no answer: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
