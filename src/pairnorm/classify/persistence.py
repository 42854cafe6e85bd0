"""A fitted classifier on disk: tensors as safetensors, everything else as JSON. Nothing is ever unpickled."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import isnan
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from pairnorm.classify.candidates import Candidate
from pairnorm.classify.scaling import Scaling
from pairnorm.data import Encoder, Split
from pairnorm.errors import PairNormError
from pairnorm.nn import GAT, GCN, SGC

if TYPE_CHECKING:
    from pairnorm.classify.classifier import NodeClassifier


Classifier = TypeVar("Classifier", bound="NodeClassifier")

FORMAT = 3
TENSORS, FACTS = "model.safetensors", "model.json"
NETWORKS: dict[str, Any] = {"SGC": SGC, "GCN": GCN, "GAT": GAT}


def save(classifier: NodeClassifier, folder: str | PathLike[str]) -> None:
    """Write a fitted classifier into a folder; see ``NodeClassifier.save``.

    Args:
        classifier: fitted.
        folder: made if it is not there.
    """
    from safetensors.torch import save as as_bytes

    from pairnorm import __version__

    scaling, network, best = classifier.scaling_, classifier.network_, classifier.best_
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    tensors["seen"] = torch.from_numpy(classifier._seen)
    if scaling.mean is not None and scaling.deviation is not None:
        tensors |= {"scaling.mean": scaling.mean, "scaling.deviation": scaling.deviation}
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    facts = {
        "format": FORMAT,
        "pairnorm": __version__,
        "parameters": classifier.get_params(),
        "network": {
            **{name: value for name, value in asdict(best).items() if not name.startswith("validation")},
            "adjacency": network.adjacency,
            "trials": network.trials,
            "hidden": _hidden(network),
        },
        "validation_accuracy": None if isnan(best.validation_accuracy) else best.validation_accuracy,
        "validation_loss": None if isnan(best.validation_loss) else best.validation_loss,
        "classes": classifier.classes_.tolist(),
        "features": classifier.n_features_in_,
        "encoder": None if classifier.encoder_ is None else asdict(classifier.encoder_),
        "scaling": scaling.kind,
        "temperature": classifier.temperature_,
    }
    # Parameters may be numpy's numbers, or an array or a range of them.
    text = json.dumps(facts, indent=1, ensure_ascii=False, default=lambda value: np.asarray(value).tolist())
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    (place / TENSORS).write_bytes(as_bytes(tensors))
    (place / FACTS).write_text(text + "\n", encoding="utf-8")


def load(cls: type[Classifier], folder: str | PathLike[str]) -> Classifier:
    """Read a fitted classifier; see ``NodeClassifier.load``."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    place = Path(folder)
    facts = read_facts(place)
    try:
        tensors = load_file(place / TENSORS)
        classifier = cls(**facts["parameters"])
        network = _network(facts, tensors)
        mean, deviation = (tensors.get(f"scaling.{name}") for name in ("mean", "deviation"))
        described = facts["network"]
        accuracy, loss = (facts[f"validation_{what}"] for what in ("accuracy", "loss"))
        best = Candidate(
            *(described[name] for name in ("model", "norm", "depth", "scale")),
            *(float("nan") if value is None else value for value in (accuracy, loss)),
        )
        classifier.scaling_ = Scaling(facts["scaling"], mean, deviation)
        classifier.classes_ = np.array(facts["classes"])
        classifier.encoder_ = None if facts["encoder"] is None else Encoder.from_json(facts["encoder"])
        classifier.n_features_in_ = facts["features"]
        classifier.temperature_ = float(facts["temperature"])
        classifier._seen = tensors["seen"].numpy()
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        problem = " ".join(str(error).split())[:200]
        raise PairNormError(f"{place / FACTS}: the saved model is damaged ({problem}). Fit again.") from error
    classifier.network_, classifier.best_, classifier.search_ = network, best, [best]
    classifier.held_out_ = None
    nobody = torch.zeros(0, dtype=torch.bool)
    classifier.split_ = Split(nobody, nobody, nobody)
    return classifier


def holds_model(place: Path) -> bool:
    """Say whether a folder holds a model that we saved, in whatever version.

    Args:
        place: the folder.
    """
    try:
        facts = json.loads((place / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(facts, dict) and {"format", "pairnorm"} <= facts.keys()


def read_facts(place: Path) -> dict[str, Any]:
    """Return what ``model.json`` says, checked.

    Args:
        place: the folder.
    """
    path = place / FACTS
    if not path.is_file():
        raise PairNormError(f"{place}: there is no {FACTS}. Name the folder that `pairnorm fit --out` wrote.")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PairNormError(f"{path}: the saved model is damaged ({error}). Fit again.") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        found = facts.get("format") if isinstance(facts, dict) else None
        raise PairNormError(
            f"{path}: format {found!r} is not known; expected {FORMAT}. Fit again with this version."
        )
    return facts


def _network(facts: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    described = dict(facts["network"])
    model, hidden = described.pop("model"), described.pop("hidden")
    described["norm"] = None if described["norm"] == "none" else described["norm"]
    if hidden:
        described |= hidden
    network: nn.Module = NETWORKS[model](facts["features"], len(facts["classes"]), **described)
    weights = {name.removeprefix("network."): value for name, value in tensors.items() if "network." in name}
    network.load_state_dict(weights)
    return network.eval()


def _hidden(network: Any) -> dict[str, int]:
    """Return the width of a deep network, where there is one between its first layer and its last."""
    if isinstance(network, SGC) or network.depth < 2:
        return {}
    return {"hidden": network.convolutions[0].weight.shape[2]}
