import pytest

from pairnorm.paper.experiment import Place
from pairnorm.paper.reported import reported


@pytest.mark.parametrize(
    ("place", "numbers"),
    [
        (Place("cora", "SGC", 100), (0.423, 15)),
        (Place("coauthor-cs", "SGC-PN", 80), (0.88, 8)),
        (Place("pubmed", "GCN-PN", 0), (0.78, 30)),
        (Place("citeseer", "GAT-t2", 0), (0.692, 2)),
    ],
)
def test_numbers_of_the_paper(place: Place, numbers: tuple[float, int]) -> None:
    assert reported()[place] == numbers


def test_all_of_them() -> None:
    assert len(reported()) == 48 + 48 + 48
    assert all(0.2 < found.accuracy < 1 and 1 <= found.layers <= 60 for found in reported().values())
