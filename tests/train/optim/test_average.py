"""The moving average of the weights, next to weights that training goes on to change."""

import torch

from slm.train.optim.average import Average


def moving(share: float, steps: int = 4) -> tuple[torch.nn.Linear, Average, list[torch.Tensor]]:
    """A layer after some steps, its average, and its weights after each step."""
    torch.manual_seed(1)
    model, seen = torch.nn.Linear(4, 3, bias=False), []
    average = Average(model, share)
    for _ in range(steps):
        with torch.no_grad():
            model.weight.add_(torch.randn(3, 4))
        average.update()
        seen.append(model.weight.detach().clone())
    return model, average, seen


def test_it_is_the_exponential_average_from_the_first_step_on():
    _, average, seen = moving(0.75)
    expected = seen[0]
    for weight in seen[1:]:
        expected = 0.75 * expected + 0.25 * weight
    torch.testing.assert_close(average.weights()["weight"], expected)


def test_in_its_place_the_model_has_the_average_and_then_its_weights_again():
    model, average, seen = moving(0.5)
    mean = average.weights()["weight"].clone()
    with average.in_place():
        assert torch.equal(model.weight, mean)
    assert torch.equal(model.weight, seen[-1])
    assert torch.equal(average.weights()["weight"], mean)
    assert torch.equal(average.trained()["weight.trained"], seen[-1])


def test_it_comes_back_from_a_checkpoint():
    model, average, _ = moving(0.5)
    fresh = torch.nn.Linear(4, 3, bias=False)
    with torch.no_grad():
        fresh.weight.copy_(average.weights()["weight"])  # what model.safetensors holds
    again = Average(fresh, 0.5)
    again.load({key: value.clone() for key, value in average.trained().items()})
    assert torch.equal(fresh.weight, model.weight)
    assert torch.equal(again.weights()["weight"], average.weights()["weight"])
    none = Average(fresh, 0.0)
    none.load(average.trained())
    assert not none.on
    assert torch.equal(fresh.weight, model.weight)


def test_without_a_share_there_is_none():
    model, average, seen = moving(0.0)
    assert not average.on
    with average.in_place():
        assert torch.equal(model.weight, seen[-1])
    assert average.weights() == average.trained() == {}
