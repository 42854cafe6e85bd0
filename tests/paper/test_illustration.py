import torch

from pairnorm.paper.illustration import CLASSES, figure2, steps


def test_centring_moves_the_mean_and_rescaling_sets_the_length() -> None:
    points, labels = steps()
    before, centred, rescaled = points.values()
    assert float(before.mean(0).norm()) > 0.5
    torch.testing.assert_close(centred.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(before - before.mean(0), centred)
    assert abs(float(rescaled.square().sum(1).mean()) - 1) < 1e-4
    # Rescaling only stretches: every point keeps its direction.
    cosine = torch.nn.functional.cosine_similarity(centred, rescaled)
    torch.testing.assert_close(cosine, torch.ones_like(cosine), atol=1e-4, rtol=0)
    assert set(labels.tolist()) == set(range(len(CLASSES)))


def test_the_figure_shows_them() -> None:
    figure = figure2()
    points, labels = steps()
    for axis, plane in zip(figure.axes, points.values(), strict=True):
        drawn = [line for line in axis.lines if len(line.get_xdata()) == int((labels == 0).sum())]
        assert torch.equal(torch.as_tensor(drawn[0].get_xdata()), plane[labels == 0][:, 0])
