"""What lies under the name of a model's file where the download went wrong.

Tested in tests/slm/llama/test_gguf_check.py, tests/slm/model/test_stored_weights.py.
"""


def wrong_download(start: bytes) -> str | None:
    """What a file is that begins like this, and what to do; None where it is neither a pointer nor a web page."""
    if start.startswith(b"version https://git-lfs.github.com/spec/"):
        return "is a git-lfs pointer, not the model: run `git lfs pull` in its folder"
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith((b"<!doctype html", b"<html")):
        return (
            "is a web page, not a model: what was downloaded is the page about the file; use the address of the file "
            "itself (on the Hub it has /resolve/ in it, not /blob/)"
        )
    return None
