"""``fit`` on a GPU equals that on a CPU; without a GPU, the kernels run in Triton's interpreter."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import run_python
from pairnorm.classify import NodeClassifier
from pairnorm.data import csbm

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CONVEX = [
    {"model": "SGC", "norm": norm, "impute": impute}
    for norm, impute in (("PN", "zero"), ("PN-SI", "fp"), ("PN-SCS", "known_neighbor_mean"), ("none", "zero"))
] + [{"model": "logistic regression"}, {"model": "label propagation"}]
# Select the GPU kernels on the CPU.
IN_THE_INTERPRETER = """
from pairnorm.nn.ops import kernels, pair_norm
from pairnorm.classify import NodeClassifier
from pairnorm.data import csbm
graph = csbm(120, classes=2, features=100, seed=1)
settings = {"model": "SGC", "norm": ["PN", "PN-SI"], "depth": [2], "scale": [3.0]}
expected = NodeClassifier(**settings).fit(graph).probabilities_
kernels.BACKENDS["cpu"], pair_norm.MAX_FUSED_ELEMENTS = kernels.BACKENDS["cuda"], 0
kernels._load.cache_clear()
assert abs(NodeClassifier(**settings).fit(graph).probabilities_ - expected).max() < 1e-3
"""


@pytest.fixture(scope="module", params=[0, 0.5])
def graph(request):
    graph = csbm(600, classes=3, seed=2).with_split("per-class-20")
    missing = torch.rand(600, generator=torch.Generator().manual_seed(0)) < request.param
    return graph.replace(missing=missing & ~graph.train)


@needs_cuda
@pytest.mark.parametrize("settings", CONVEX, ids=lambda settings: "-".join(settings.values()))
def test_convex_candidates_equal_those_on_cpu(graph, settings):
    ours, theirs = (NodeClassifier(**settings, device=device).fit(graph) for device in ("cuda", "cpu"))
    assert ours.best_ == replace(
        theirs.best_,
        validation_loss=ours.best_.validation_loss,
        validation_accuracy=ours.best_.validation_accuracy,
    )
    np.testing.assert_allclose(ours.probabilities_, theirs.probabilities_, atol=2e-3)
    np.testing.assert_allclose(ours.predict_proba(graph), ours.probabilities_, atol=1e-4)


@needs_cuda
def test_all_candidates_are_trained_saved_and_loaded_on_cuda(graph, tmp_path):
    classifier = NodeClassifier(device="cuda").fit(graph)
    assert classifier.held_out_.accuracy > 0.7
    classifier.save(tmp_path)
    for device in ("cuda", "cpu"):
        loaded = NodeClassifier.load(tmp_path)
        loaded.device = device
        np.testing.assert_allclose(loaded.predict_proba(graph), classifier.probabilities_, atol=2e-3)


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are tested on the GPU")
def test_fit_with_kernels_in_the_interpreter():
    run_python("-W", "ignore", "-c", IN_THE_INTERPRETER, env={"TRITON_INTERPRET": "1"})
