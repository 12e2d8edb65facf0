"""Beginnings that conversations share are computed once: the losses and gradients stay the model's."""

import pytest
import torch

from slm.kernels.fused import Fused
from slm.model.layers.shared_rows import shared_rows
from tests.helpers.kernels import kernels_for_test
from tests.slm.kernels.test_fused import SHAPES, check, new_model

IGNORED = -100


def talks(rows: int, *parts: tuple[list[int], int], length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, targets and starts of ``rows`` equal sequences of conversations: tokens, and from which one on the next is
    scored. Behind them stands padding."""
    ids, targets = torch.zeros(1, length, dtype=torch.int64), torch.full((1, length), IGNORED)
    starts = torch.zeros(1, length, dtype=torch.int32)
    at = 0
    for tokens, scored in parts:
        end = at + len(tokens)
        ids[0, at:end], starts[0, at:] = torch.tensor(tokens), at
        targets[0, at + scored : end - 1] = ids[0, at + scored + 1 : end]
        at = end
    starts[0, at:] = at
    return ids.expand(rows, -1).clone(), targets.expand(rows, -1).clone(), starts.expand(rows, -1).clone()


def several(rows: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Four conversations with one system prompt, two of them with one question, one without it, and padding."""
    chance = torch.Generator().manual_seed(5)

    def draw(count: int) -> list[int]:
        return torch.randint(1, 320, (count,), generator=chance).tolist()

    system, question = draw(23), draw(9)
    return talks(
        rows,
        (system + question + draw(11), 31),
        (system + question + draw(7), 31),
        (system + draw(17), 30),
        (draw(21), 8),
        (system + draw(9), 27),
        length=192,
    )


def test_a_shared_beginning_has_one_row_and_padding_none():
    rows = shared_rows(*talks(1, ([7, 8, 9, 1, 2], 3), ([7, 8, 9, 1, 3], 3), ([7, 4, 5], 1), length=16))
    # 7 8 9, then both scored positions, each with a row; "4" predicts 5; what predicts nothing has none.
    assert rows.own.tolist() == [0, 1, 2, 3, 8, 11]
    assert rows.of.tolist() == [0, 1, 2, 3, 0, 0, 1, 2, 4, 0, 0, 5, 0, 0, 0, 0]


def test_the_same_conversation_twice_counts_twice():
    rows = shared_rows(*talks(1, ([7, 8, 9, 1, 2], 2), ([7, 8, 9, 1, 2], 2), length=10))
    assert rows.own.tolist() == [0, 1, 2, 3, 7, 8]


def test_text_that_is_scored_throughout_has_all_its_rows():
    ids, targets, starts = several()
    assert shared_rows(ids, ids, starts) is None
    assert shared_rows(ids, torch.full_like(targets, IGNORED), starts) is None


# What is copied and summed does not depend on the products: one shape in the format that rounds its sums.
@pytest.mark.parametrize(("shape", "name"), [*((shape, "avx2") for shape in SHAPES), ("qk-norm", "avx512bf16")])
def test_loss_and_gradients_are_the_models(shape, name):
    kernels, model, (ids, targets, starts) = kernels_for_test(name), new_model(**SHAPES[shape]), several()
    assert len(shared_rows(ids, targets, starts).own) == 93  # of 192
    check(model, Fused(model, kernels), ids, targets, starts)
    check(model, Fused(model, kernels, recompute="layer"), ids, targets, starts)


def test_sequences_of_a_batch_share_and_losses_stay_in_their_places():
    model, (ids, targets, starts) = new_model(), several(rows=3)
    fused = Fused(model, kernels_for_test("avx2"))
    check(model, fused, ids, targets, starts)
    with torch.no_grad():
        logits = model(ids, starts_BT=starts)
        exact = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    torch.testing.assert_close(fused.losses(ids, targets, starts_BT=starts).flatten(), exact, atol=1e-4, rtol=1e-4)


def test_a_batch_without_a_shared_beginning_follows_one_with():
    model, (ids, targets, starts) = new_model(), several()
    fused = Fused(model, kernels_for_test("avx2"))
    check(model, fused, ids, targets, starts)
    chance = torch.Generator().manual_seed(1)
    plain = torch.randint(0, 320, (2, *ids.shape[1:]), generator=chance)
    check(model, fused, plain[:1], plain[1:])
    check(model, fused, ids, targets, starts)
