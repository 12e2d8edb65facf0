"""Reads a text from standard input and prints its fields as JSON that fits a schema.

echo "Ann ordered 3 chairs." | python examples/json_extractor/extract.py SCHEMA.json
"""

import argparse
import json
import os
import sys
from pathlib import Path

from openai import APIError, OpenAI


def extract(client: OpenAI, text: str, schema: dict, max_tokens: int) -> object:
    """The fields of ``text`` under ``schema``. ``ValueError`` where the answer was cut off."""
    answer = client.chat.completions.create(
        model="default",
        messages=[
            {"role": "system", "content": "Extract the fields from the text. Answer with JSON only."},
            {"role": "user", "content": text},
        ],
        response_format={"type": "json_schema", "json_schema": {"name": "fields", "schema": schema, "strict": True}},
        temperature=0,
        max_tokens=max_tokens,
    )
    choice = answer.choices[0]
    if choice.finish_reason == "length":
        raise ValueError(f"the answer did not fit into {max_tokens} tokens; raise --max-tokens, or shorten the schema")
    return json.loads(choice.message.content or "")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("schema", type=Path, help="a JSON schema")
    parser.add_argument("--url", default="http://localhost:8080/v1", help="the server (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=512, help="most tokens of the answer (default: %(default)s)")
    options = parser.parse_args()
    client = OpenAI(base_url=options.url, api_key=os.environ.get("SLM_API_KEY", "none"), max_retries=0)
    try:
        schema = json.loads(options.schema.read_text())
        fields = extract(client, sys.stdin.read(), schema, options.max_tokens)
    except (APIError, OSError, ValueError) as error:
        sys.exit(f"no fields: {error}")
    print(json.dumps(fields, ensure_ascii=False))


if __name__ == "__main__":
    main()
