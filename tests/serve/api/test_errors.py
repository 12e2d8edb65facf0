import json

import pytest

from slm.serve.api.errors import ApiError, no_such_model, request_failed
from slm.serve.engine.protocol import Failure
from slm.serve.pool.request_stream import RequestFailedError


def test_the_body_and_the_response():
    error = ApiError(400, "Bad.", param="n", code="invalid_value", headers={"Retry-After": "1"})
    response = error.response()
    assert response.status_code == 400
    assert response.headers["retry-after"] == "1"
    detail = {"message": "Bad.", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}
    assert json.loads(response.body) == {"error": detail}
    assert list(json.loads(response.body)["error"]) == list(detail)


def test_an_unknown_model_names_the_nearest():
    error = no_such_model("tiny-cat", ["tiny-chat", "big"])
    assert error.status == 404
    assert (
        str(error)
        == "There is no model 'tiny-cat' here (did you mean 'tiny-chat'?). This server has 'tiny-chat', 'big'. "
        "(serve.only_known_models=false lets the first of them answer to every name.)"
    )
    assert len(str(no_such_model("x" * 10_000, ["tiny"]))) < 300


@pytest.mark.parametrize(
    ("code", "status", "param"),
    [
        ("context_length_exceeded", 400, "input"),
        ("invalid_request", 400, None),
        ("deadline_exceeded", 408, "timeout_s"),
        ("engine_died", 503, None),
        ("engine_error", 500, None),
    ],
)
def test_a_failure_of_the_engine(code, status, param):
    error = request_failed(RequestFailedError(Failure(id="a", code=code, message="Why.")), param="input")
    assert (error.status, error.body["error"]["param"], str(error)) == (status, param, "Why.")
    assert "n_ctx" not in error.body["error"]


def test_a_prompt_that_is_too_long_is_counted():
    failure = Failure(id="a", code="context_length_exceeded", message="Why.", n_tokens=9, n_context=8)
    said = request_failed(RequestFailedError(failure)).body["error"]
    assert (said["n_prompt_tokens"], said["n_ctx"]) == (9, 8)
    assert (said["code"], said["type"]) == ("context_length_exceeded", "exceed_context_size_error")
