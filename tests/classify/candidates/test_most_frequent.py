import torch

from pairnorm.classify.candidates import MostFrequent, PreparedGraph, Task

CPU = torch.device("cpu")


def test_probabilities_equal_training_class_frequencies(small, task):
    ones = (small.labels == 1) & small.train
    zeros = small.train & ~ones & (torch.cumsum((small.train & ~ones).int(), 0) <= 5)
    graph = small.replace(train=ones | zeros)
    task = Task(graph, PreparedGraph(graph, task.features, CPU), "rw")
    ((*_, fit),) = MostFrequent().fit(task, lambda done: None)
    probabilities = fit(task).logits(PreparedGraph(graph, task.features, CPU)).softmax(-1)
    torch.testing.assert_close(probabilities, torch.tensor([5 / 25, 20 / 25]).expand(300, 1, 2))
