"""What the reference gives to pairs is computed once and kept; another model's figures are not taken."""

import numpy as np
import pytest
import torch

from slm.data.errors import UserError
from slm.train.backend import make_frozen_backend
from slm.train.objective.batch import split
from slm.train.objective.preference import Answers
from slm.train.objective.reference import DIGEST, FILE, RECORD, KeptReference, digest_of, frozen_copy
from tests.train.objective.test_preference import BLOCKS, PLAIN, model_of


def test_what_is_kept_is_what_was_computed_wherever_the_pair_comes_next(tmp_path):
    model = frozen_copy(model_of(2))
    backend, calls = make_frozen_backend(model, PLAIN), []
    true = backend.losses
    backend.losses = lambda *batch: calls.append(1) or true(*batch)
    kept = KeptReference(backend, digest_of(model), tmp_path / FILE)
    batch = split(BLOCKS)
    first = kept(batch, Answers(batch))
    turned = split(BLOCKS[::-1].copy())
    again = kept(turned, Answers(turned))
    assert len(calls) == 1
    # The blocks hold 2, 1 and 3 pairs.
    assert torch.equal(again, torch.cat([first[3:], first[2:3], first[:2]]))
    live = KeptReference(backend, b"", None)
    assert torch.equal(live(batch, Answers(batch)), first)
    assert len(calls) == 2

    path = tmp_path / FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])  # the end of the last record was not written any more
    part = KeptReference(backend, digest_of(model), path)
    assert torch.equal(part(batch, Answers(batch)), first)
    assert len(calls) == 3
    assert len(path.read_bytes()) == len(whole) == DIGEST + RECORD.size * 6

    other = frozen_copy(model_of(3))
    with pytest.raises(UserError, match="belongs to another model"):
        KeptReference(make_frozen_backend(other, PLAIN), digest_of(other), path)


def test_a_frozen_copy_stays_as_it_was():
    model = model_of(1)
    copy = frozen_copy(model)
    before = digest_of(copy)
    assert before == digest_of(model)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert digest_of(copy) == before != digest_of(model)
    assert not any(parameter.requires_grad for parameter in copy.parameters())
    assert np.isfinite(copy(torch.zeros(1, 3, dtype=torch.int64)).detach().numpy()).all()
