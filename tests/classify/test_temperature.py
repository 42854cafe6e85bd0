import pytest
import torch

from pairnorm.classify.temperature import FEWEST, fit_temperature, mean_probabilities


@pytest.mark.parametrize("true", [1.0, 4.0])
def test_an_overconfident_model_is_cooled_to_the_truth(true: float) -> None:
    generator = torch.Generator().manual_seed(0)
    honest = torch.randn(4000, 1, 3, generator=generator)
    labels = torch.multinomial(honest[:, 0].softmax(-1), 1, generator=generator).squeeze(1)
    assert fit_temperature(true * honest, labels) == pytest.approx(true, rel=0.15)


def test_a_model_that_is_always_right_and_one_judged_by_few_stay_as_they_are() -> None:
    labels = torch.arange(60) % 3
    logits = torch.nn.functional.one_hot(labels).float()[:, None]
    assert fit_temperature(logits, labels) == 1.0
    assert 1.5 < fit_temperature(20 * logits, labels) < 10  # certain beyond what sixty nodes can show
    wrong = (labels + 1) % 3
    assert fit_temperature(logits, wrong) > 10
    assert fit_temperature(logits[: FEWEST - 1], wrong[: FEWEST - 1]) == 1.0


def test_trials_are_averaged_as_probabilities() -> None:
    logits = torch.tensor([[[2.0, 0.0], [0.0, 4.0]]])
    chances = (torch.softmax(torch.tensor([1.0, 0.0]), 0) + torch.softmax(torch.tensor([0.0, 2.0]), 0)) / 2
    torch.testing.assert_close(mean_probabilities(logits, 2.0)[0], chances)
