from dataclasses import replace

import torch

from pairnorm.classify.candidates import Average, Candidate, SGCFamily, Task, Tried
from pairnorm.classify.candidates.average import choose
from pairnorm.classify.search import search

CPU = torch.device("cpu")


def tried(task: Task, chances: torch.Tensor) -> Tried:
    return task.tried(Candidate("SGC"), chances.log().unsqueeze(1), lambda task: None)


def test_what_gains_nothing_is_left_out_and_what_differs_is_taken(task: Task) -> None:
    """Two that are wrong on different nodes are better together; a guess adds nothing."""
    truth = torch.nn.functional.one_hot(task.held, 2).float()
    first, second = (torch.arange(len(truth)) % 2 == rest for rest in (0, 1))
    good, bad = 0.9 * truth + 0.05, 0.3 * truth + 0.35
    halves = [tried(task, torch.where(half[:, None], good, bad)) for half in (first, second)]
    guess = tried(task, torch.full_like(truth, 0.5))
    assert dict(choose(task, [guess, *halves])).keys() == {1, 2}
    assert dict(choose(task, [tried(task, good), *halves, guess])) == {0: 1}


def test_it_is_the_weighted_mean_of_probabilities(task: Task) -> None:
    choice = search(task, [SGCFamily(["PN"], (1, 3), (3.0,))])
    parts = [
        (weight, one.candidate, one.learn(task)) for weight, one in zip((1, 3), choice.tried, strict=True)
    ]
    found = Average(parts).logits(task.graph, task.features, CPU).softmax(-1)[:, 0]
    one, three = (part.logits(task.graph, task.features, CPU).softmax(-1)[:, 0] for *_, part in parts)
    torch.testing.assert_close(found, (one + 3 * three) / 4, atol=1e-5, rtol=1e-4)


def test_the_metric_decides_who_is_taken(task: Task) -> None:
    """By accuracy the one that is right most often, however unsure; by loss the other."""
    truth = torch.nn.functional.one_hot(task.held, 2).float()
    unsure, sure = 0.02 * truth + 0.49, 0.98 * truth + 0.01
    sure[:5] = torch.tensor([0.4, 0.6]).where(task.held[:5, None] == 0, torch.tensor([0.6, 0.4]))
    for metric, expected in (("accuracy", 0), ("loss", 1)):
        now = replace(task, metric=metric)
        assert choose(now, [tried(now, unsure), tried(now, sure)]).most_common(1)[0][0] == expected
