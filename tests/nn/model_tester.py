"""Configurations of all models, and how tests build one."""

import torch

from pairnorm.nn import APPNP, G2, GAT, GCN, GCNII, SGC, SMPNN

NODES, FEATURES, CLASSES, HIDDEN = 20, 6, 3, 8
WIDTH = {"hidden_channels": HIDDEN}
PLAIN = {
    "GCN": (GCN, WIDTH),
    "GAT": (GAT, WIDTH | {"heads": 2}),
    "SGC": (SGC, {}),
}
NORMALIZED = {
    f"{name}, {norm}": (kind, settings | {"norm": norm})
    for name, (kind, settings) in PLAIN.items()
    for norm in ("PN", "PN-SI")
}
DEEP = {kind.__name__: (kind, WIDTH) for kind in (GCNII, APPNP, SMPNN, G2)}
EVERY = PLAIN | NORMALIZED | DEEP


def build(kind, settings, seeds=(0,), **more):
    """A model whose biases are not zero, so that they are tested too."""
    model = kind(FEATURES, CLASSES, **{"num_models": len(seeds), **settings, **more})
    model.reset_parameters(seeds)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            values = torch.linspace(-0.1, 0.2, parameter[0].numel()).view_as(parameter[0])
            parameter.data = values.expand_as(parameter).clone()
    return model


def random_features():
    return torch.randn(NODES, FEATURES) * (torch.rand(NODES, FEATURES) < 0.5)
