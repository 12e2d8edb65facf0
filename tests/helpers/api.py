"""Request bodies as the API parses them."""

import json

import pytest

from slm.serve.api.core.parsing import parse
from slm.serve.api.errors import ApiError


def error(cls, body):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ApiError) as caught:
        parse(cls, raw)
    assert caught.value.status == 400
    return caught.value.body["error"]


def parsed(cls, body):
    return parse(cls, json.dumps(body).encode())
