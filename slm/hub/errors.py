"""What can go wrong between this machine and the Hub, each as one line.

Tested in tests/slm/hub/test_models.py, tests/slm/hub/test_publish.py.
"""

import contextlib
from collections.abc import Iterator

from slm.data.errors import UserError, excerpt


def host() -> str:
    """The Hub's address as messages name it."""
    from huggingface_hub import constants

    return constants.ENDPOINT.split("://")[-1]


@contextlib.contextmanager
def hub_errors(repo: str, revision: str | None = None, *, upload: bool = False) -> Iterator[None]:
    """Turn what ``huggingface_hub`` raises about ``repo`` into a ``UserError``. ``upload``: it is not read but written,
    so that no folder could stand in for it."""
    from huggingface_hub import constants, errors

    at = host()
    absent, instead = ("", "") if upload else (f"there is no folder {repo} here, and ", ", or name a folder")
    try:
        yield
    except errors.GatedRepoError as error:
        raise UserError(
            f"{repo} is gated: accept its terms at {constants.ENDPOINT}/{repo}, then log in with `hf auth login` "
            "(or set HF_TOKEN)"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"there is no folder {repo} here and no model {repo} on {at}; check the name, or log in with "
            "`hf auth login` (or set HF_TOKEN) if it is private"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{repo} has no revision {revision or 'main'!r}: give a branch, a tag or a commit") from error
    except errors.LocalEntryNotFoundError as error:
        raise UserError(
            f"{repo} could not be downloaded whole from {at} ({excerpt(error.__cause__ or error)}): run the command "
            "again, it goes on from here"
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise UserError(
            f"{absent}the Hub may not be asked for {repo} because HF_HUB_OFFLINE is set: unset it{instead}"
        ) from error
    except errors.HFValidationError as error:
        raise UserError(f"{repo} cannot be a model's name on the Hub ({excerpt(error)}); write org/name") from error
    except errors.LocalTokenNotFoundError as error:
        raise UserError(f"{at} asks who you are: log in with `hf auth login`, or set HF_TOKEN") from error
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "")
        if status in (401, 403):
            raise UserError(
                f"{at} does not allow this for {repo} ({status}): log in with `hf auth login`, or set HF_TOKEN to a "
                "token that may"
            ) from error
        raise UserError(f"{at} answered {status} for {repo}: {excerpt(error)}; try again later") from error
    except Exception as error:
        if not _is_network(error):
            raise
        raise UserError(
            f"{absent}{at} could not be reached for {repo} ({type(error).__name__}): check the network{instead}"
        ) from error


def _is_network(error: BaseException) -> bool:
    """Whether a connection failed. The library's client is one of two packages, by its version."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return any(each.__name__ == "TransportError" and "httpx" in each.__module__ for each in type(error).__mro__)
