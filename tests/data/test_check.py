import numpy as np
import pytest
import torch

from pairnorm.data import Graph
from pairnorm.errors import PairNormError


def mask(*nodes: int) -> torch.Tensor:
    return torch.isin(torch.arange(5), torch.tensor(nodes))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"adjacency": torch.eye(5)}, "adjacency is a torch.strided tensor.*Graph.from_edges"),
        ({"features": torch.ones(5, 3, dtype=torch.int64)}, "features are torch.int64"),
        ({"features": torch.ones(4, 3)}, r"features has shape \(4, 3\), but the graph has 5 nodes"),
        ({"labels": torch.zeros(5)}, "labels are torch.float32 .*expected int64"),
        ({"labels": torch.tensor([0, 1, 2, 0, 0])}, r"labels\[2\] is 2; expected a class from 0 to 1, or -1"),
        ({"labels": torch.tensor([0, 1, -2, 0, 0])}, r"labels\[2\] is -2"),
        ({"train": torch.zeros(5)}, "train is torch.float32 .*expected bool"),
        ({"validation": mask(1, 2)}, "overlap: 1 nodes of validation are in another too, first 2. Put each"),
        ({"test": mask(0, 3)}, "overlap: 1 nodes of test are in another too, first 0"),
        ({"test": mask(4)}, "1 nodes of the split have no label, first 4"),
        (
            {"missing": torch.zeros(5, 2, dtype=torch.bool)},
            r"missing has shape \(5, 2\); expected \[5\] .*\[5, 3\]",
        ),
        ({"features": torch.ones(5, 3).fill_diagonal_(torch.inf)}, "feature 0 of node 0 is infinite.*NaN if"),
        (
            {"features": torch.diag(torch.tensor([0, -torch.inf, 0, 0, 1])).to_sparse_csr()},
            "feature 1 of node 1 is infinite",
        ),
        (
            {"features": torch.full((5, 2), -torch.inf), "feature_names": ("age", "income")},
            "feature 'age' of node 0 is infinite",
        ),
        ({"node_names": np.array(["a"])}, r"node_names has shape \(1,\)"),
        ({"feature_names": ("a",)}, "1 feature names for 3 features"),
    ],
)
def test_what_does_not_fit_is_named(small: Graph, part: dict[str, object], message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        small.replace(**part)


def test_the_node_in_an_error_goes_by_its_name(small: Graph) -> None:
    with pytest.raises(PairNormError, match="first 'ann'"):
        small.replace(node_names=np.array(["ann", "bob", "cy", "di", "ed"]), test=mask(0))
