import pytest

from pairnorm.paper.cases import constant, shrinks_to, stays_apart
from pairnorm.paper.layers import Layers


@pytest.mark.parametrize(("values", "holds"), [([1.0, 0.9, 0.4], True), ([1.0, 0.2, 0.6], False)])
def test_shrinks_to(values: list[float], holds: bool) -> None:
    assert shrinks_to(0.5, values) == (holds, f"1 in the first layer, {values[-1]:g} in the last")


@pytest.mark.parametrize(("values", "holds"), [([2.0, 2.001, 1.9995], True), ([2.0, 2.01], False)])
def test_constant(values: list[float], holds: bool) -> None:
    assert constant(values)[0] is holds


@pytest.mark.parametrize(("connected", "holds"), [(0.5, True), (0.9, False)])
def test_stays_apart_looks_at_the_last_layer(connected: float, holds: bool) -> None:
    layers = Layers(0.7, {"connected": [0.1, connected], "random": [0.1, 1.0]}, {}, {}, {})
    assert stays_apart(layers) == (holds, f"connected {connected}, random 1")
