"""A fitted classifier on disk: tensors as safetensors, everything else as JSON. Nothing is ever unpickled."""

from __future__ import annotations

from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from torch import Tensor

from pairnorm.classify.candidates import KINDS, Candidate
from pairnorm.classify.candidates.base import Saved
from pairnorm.classify.scaling import Scaling
from pairnorm.classify.search import DEEPEST, LARGEST_SCALE
from pairnorm.data import Encoder, Split
from pairnorm.errors import PairNormError, quoted
from pairnorm.version import __version__
from pairnorm.writing import steady_folder

if TYPE_CHECKING:
    from pairnorm.classify.classifier import NodeClassifier


Classifier = TypeVar("Classifier", bound="NodeClassifier")

FORMAT = 3
TENSORS, FACTS = "model.safetensors", "model.json"


class _Schema(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class SavedCandidate(_Schema):
    """The chosen ``Candidate``; what is not known is null."""

    model: Literal["SGC", "GCN", "GAT", "label propagation", "logistic regression", "most frequent class"]
    norm: Literal["none", "PN", "PN-SI", "PN-SCS"]
    depth: Annotated[int, Field(ge=0, le=DEEPEST)]
    scale: Annotated[FiniteFloat, Field(gt=0, le=LARGEST_SCALE)]
    validation_accuracy: FiniteFloat | None
    validation_loss: FiniteFloat | None
    setting: str


class Facts(_Schema):
    """All of ``model.json``."""

    format: Literal[3]
    pairnorm: str
    parameters: dict[str, Any]
    candidate: SavedCandidate
    settings: dict[str, Any]
    classes: Annotated[list[str], Field(min_length=1)]
    features: Annotated[int, Field(ge=1)]
    encoder: Encoder | None
    scaling: Literal["rows", "columns", "none"]
    temperature: Annotated[FiniteFloat, Field(gt=1e-6)]


def save(classifier: NodeClassifier, folder: str | PathLike[str]) -> None:
    """Write a fitted classifier into a folder; see ``NodeClassifier.save``.

    Args:
        classifier: fitted.
        folder: made if it is not there.
    """
    from safetensors.torch import save as as_bytes

    scaling, best = classifier.scaling_, classifier.best_
    settings, state = classifier.model_.state()
    tensors = {f"model.{name}": value for name, value in state.items()}
    tensors["seen"] = torch.from_numpy(classifier._seen)
    if scaling.mean is not None and scaling.deviation is not None:
        tensors |= {"scaling.mean": scaling.mean, "scaling.deviation": scaling.deviation}
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    facts = Facts.model_validate(
        {
            "format": FORMAT,
            "pairnorm": __version__,
            "parameters": classifier.get_params(),
            "candidate": {name: None if value != value else value for name, value in asdict(best).items()},
            "settings": settings,
            "classes": classifier.classes_.tolist(),
            "features": classifier.n_features_in_,
            "encoder": classifier.encoder_,
            "scaling": scaling.kind,
            "temperature": classifier.temperature_,
        },
        strict=False,
    )
    # Parameters may be numpy's numbers, or an array or a range of them.
    text = facts.model_dump_json(indent=1, fallback=lambda value: np.asarray(value).tolist())
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    (place / TENSORS).write_bytes(as_bytes(tensors))
    (place / FACTS).write_text(text + "\n", encoding="utf-8")


def load(cls: type[Classifier], folder: str | PathLike[str]) -> Classifier:
    """Read a fitted classifier; see ``NodeClassifier.load``."""
    place = Path(folder)
    with steady_folder(place):
        facts, tensors = _read(place), _read_tensors(place)
    try:
        state = _checked(facts, tensors)
        known = {name: value for name, value in facts.candidate if value is not None}
        best = Candidate(**known)
        classifier = cls(**facts.parameters)
        classifier.model_ = KINDS[best.model].restore(
            Saved(best, facts.settings, state, facts.features, len(facts.classes))
        )
        mean, deviation = (tensors.get(f"scaling.{name}") for name in ("mean", "deviation"))
        classifier._seen = tensors["seen"].numpy()
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise _damaged(place / FACTS, error) from error
    classifier.best_, classifier.search_ = best, [best]
    classifier.scaling_ = Scaling(facts.scaling, mean, deviation)
    classifier.classes_, classifier.n_features_in_ = np.array(facts.classes), facts.features
    classifier.encoder_ = facts.encoder
    classifier.temperature_, classifier.held_out_ = facts.temperature, None
    nobody = torch.zeros(0, dtype=torch.bool)
    classifier.split_ = Split(nobody, nobody, nobody)
    return classifier


def _checked(facts: Facts, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the model; all must be finite, and those of the features as many."""
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{name} is not finite")
    state = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if "model." in name}
    if facts.scaling == "columns" and not (
        tensors["scaling.mean"].shape == tensors["scaling.deviation"].shape == (facts.features,)
    ):
        raise ValueError("the scaling is of another number of features")
    if facts.encoder is not None and len(facts.encoder.feature_names) != facts.features:
        raise ValueError(f"{len(facts.encoder.feature_names)} names for {facts.features} features")
    return state


def holds_model(place: Path) -> bool:
    """Say whether a folder holds a model that we saved, in whatever version.

    Args:
        place: the folder.
    """
    from pydantic_core import from_json

    try:
        facts = from_json((place / FACTS).read_bytes()) if (place / FACTS).is_file() else None
    except (OSError, ValueError):
        return False
    return isinstance(facts, dict) and {"format", "pairnorm"} <= facts.keys()


def read_facts(place: Path) -> dict[str, Any]:
    """Return what ``model.json`` says, checked.

    Args:
        place: the folder.
    """
    with steady_folder(place):
        return _read(place).model_dump()


def _read(place: Path) -> Facts:
    path = place / FACTS
    if not path.is_file():
        raise PairNormError(
            f"{place}: there is no {FACTS}",
            code="file-missing",
            value=str(path),
            remedy="Name the folder that `pairnorm fit --out` wrote.",
        )
    try:
        return Facts.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problems = {problem["loc"]: problem for problem in error.errors()}
        if version := problems.get(("format",)):
            found = None if version["type"] == "missing" else version["input"]
            raise PairNormError(
                f"{path}: format {quoted(found)} is not known",
                code="wrong-version",
                value=found,
                expected=str(FORMAT),
                remedy="Fit again with this version.",
            ) from error
        where, problem = next(iter(problems.items()))
        raise _damaged(path, f"{'.'.join(map(str, where))}: {problem['msg']}".lstrip(": ")) from error
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _read_tensors(place: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = place / TENSORS
    try:
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError("there is no such file")
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error
    return tensors


def _damaged(path: Path, problem: object) -> PairNormError:
    return PairNormError(
        f"{path}: the saved model is damaged ({' '.join(str(problem).split())[:200]})",
        code="file-damaged",
        value=str(path),
        remedy="Fit again.",
    )
