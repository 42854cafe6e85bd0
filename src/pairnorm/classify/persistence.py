"""Save and load a fitted classifier: tensors as safetensors, the rest as JSON. Nothing is unpickled."""

from __future__ import annotations

from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    PlainSerializer,
    ValidationError,
)
from torch import Tensor

from pairnorm.base.errors import PairNormError, quoted
from pairnorm.base.files import check_not_file, locked_folder
from pairnorm.classify.calibration import Calibration
from pairnorm.classify.candidates import KINDS, Average, Candidate, Fitted
from pairnorm.classify.candidates.candidate import SavedState
from pairnorm.classify.candidates.ensemble import Smoothing
from pairnorm.classify.candidates.estimators import FittedEstimator, check_registered
from pairnorm.classify.candidates.task import KnownLabels
from pairnorm.classify.evaluation import Scores
from pairnorm.classify.scaling import Scaling
from pairnorm.classify.search_space import IMPUTATIONS, MAX_DEPTH, MAX_SCALE
from pairnorm.data import Encoder, Split
from pairnorm.version import __version__

if TYPE_CHECKING:
    from pairnorm.classify.classifier import NodeClassifier


Classifier = TypeVar("Classifier", bound="NodeClassifier")

FORMAT = 7
OLD_PARAMETERS = {"fill": "impute"}
# A loaded model may differ by rounding.
MAX_DEVIATION = 1e-4
TENSORS, FACTS = "model.safetensors", "model.json"


def _check_candidate(value: Any) -> Any:
    """Validate the fields of a candidate in a file; null stands for NaN."""
    if not isinstance(value, dict):
        return value
    value = {("imputation" if name == "fill" else name): part for name, part in value.items()}
    if set(value) != {field.name for field in fields(Candidate)}:
        raise ValueError("a candidate has other fields")
    if not (0 <= value["depth"] <= MAX_DEPTH and 0 < value["scale"] <= MAX_SCALE):
        raise ValueError("depth or scale is out of range")
    if value["imputation"] not in IMPUTATIONS:
        raise ValueError(f"the imputation {quoted(value['imputation'])} is not known")
    value["parts"] = tuple(value["parts"])
    return {name: part for name, part in value.items() if part is not None or name == "norm"}


def _candidate_to_json(candidate: Candidate) -> dict[str, Any]:
    facts = {name: None if value != value else value for name, value in asdict(candidate).items()}
    facts["fill"] = facts.pop("imputation")  # its name in files
    return facts


SavedCandidate = Annotated[Candidate, BeforeValidator(_check_candidate), PlainSerializer(_candidate_to_json)]
Unit = Annotated[FiniteFloat, Field(ge=0, le=1)]


class _Schema(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class SavedPart(_Schema):
    """A member of the ensemble: its weight, and its settings."""

    weight: Annotated[int, Field(ge=1)]
    candidate: SavedCandidate
    settings: dict[str, Any]


class SavedSmooth(_Schema):
    """The smoothing of the ensemble: see ``Smoothing``."""

    alpha: Annotated[FiniteFloat, Field(ge=0, lt=1)]
    power: Annotated[FiniteFloat, Field(gt=0, le=100)]


class SavedScores(_Schema):
    """The ``Scores`` on held-out nodes; null stands for NaN."""

    confusion: list[list[Annotated[int, Field(ge=0, le=2**53)]]]
    auc: FiniteFloat | None
    average_precision: FiniteFloat | None


class Facts(_Schema):
    """All of ``model.json``."""

    format: Literal[7]
    pairnorm: str
    parameters: dict[str, Any]
    average: SavedCandidate | None
    parts: Annotated[list[SavedPart], Field(min_length=1)]
    smooth: SavedSmooth | None
    classes: Annotated[
        list[str] | list[bool] | list[Annotated[int, Field(gt=-(2**63), lt=2**63)]], Field(min_length=1)
    ]
    features: Annotated[int, Field(ge=1)]
    encoder: Encoder | None
    scaling: Literal["rows", "columns", "none"]
    temperature: Annotated[FiniteFloat, Field(gt=1e-6)]
    prior: list[Annotated[FiniteFloat, Field(gt=0, le=1)]]
    tilt: Unit
    held_out: SavedScores | None


def save(classifier: NodeClassifier, folder: str | PathLike[str]) -> None:
    """Write a fitted classifier into a folder; see ``NodeClassifier.save``."""
    from safetensors.torch import save as to_bytes

    model, scaling, scores = classifier.model_, classifier.scaling_, classifier.held_out_
    tensors: dict[str, Tensor] = {
        "known.names": model.known.names,
        "known.labels": model.known.labels,
        "fallback": model.fallback_probabilities,
        "seen": torch.from_numpy(classifier._seen),
        "tested": torch.from_numpy(classifier._tested),
    }
    parts: list[SavedPart] = []
    for number, (weight, candidate, fitted) in enumerate(model.parts):
        settings, state = fitted.state()
        tensors |= {f"model.{number}.{name}": value for name, value in state.items()}
        parts.append(SavedPart(weight=weight, candidate=candidate, settings=settings))
    if classifier.calibration_ is not None:
        for name, values in classifier.calibration_._asdict().items():
            tensors[f"calibration.{name}"] = torch.from_numpy(values)
    for name in ("mean", "deviation", "words"):
        if (value := getattr(scaling, name)) is not None:
            tensors[f"scaling.{name}"] = value
    # Parts may share statistics, which the file holds for each.
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    facts = Facts.model_validate(
        {
            "format": FORMAT,
            "pairnorm": __version__,
            "parameters": {name: _encode(value) for name, value in classifier.get_params().items()},
            "average": classifier.best_ if classifier.best_.model == "average" else None,
            "parts": parts,
            "smooth": None if model.smooth is None else model.smooth._asdict(),
            "classes": classifier.classes_.tolist(),
            "features": classifier.n_features_in_,
            "encoder": classifier.encoder_,
            "scaling": scaling.kind,
            "temperature": classifier.temperature_,
            "prior": classifier.prior_.tolist(),
            "tilt": classifier.tilt_,
            "held_out": None if scores is None else _scores_to_json(scores),
        },
        strict=False,
    )
    # Parameters may be numpy's numbers, or an array or a range of them.
    text = facts.model_dump_json(indent=1, fallback=lambda value: np.asarray(value).tolist())
    path = Path(folder)
    check_not_file(path)
    path.mkdir(parents=True, exist_ok=True)
    (path / TENSORS).write_bytes(to_bytes(tensors))
    (path / FACTS).write_text(text + "\n", encoding="utf-8")


def _encode(value: Any) -> Any:
    """Return a parameter as JSON can hold it; a tuple stays known as one."""
    return {"tuple": list(value)} if isinstance(value, tuple) else value


def _decode(value: Any) -> Any:
    return tuple(value["tuple"]) if isinstance(value, dict) else value


def _scores_to_json(scores: Scores) -> dict[str, Any]:
    values = {name: None if np.isnan(value).any() else value for name, value in asdict(scores).items()}
    return values | {"confusion": scores.confusion.tolist()}


def verify(classifier: NodeClassifier, folder: str | PathLike[str]) -> None:
    """Load a saved model and raise an error unless it predicts as the fitted one does."""
    path = Path(folder)  # which the caller has locked
    loaded = _restore(type(classifier), path, _read_facts(path), _read_tensors(path))
    loaded.set_params(device=classifier.device)
    probabilities = loaded.predict_proba(classifier.graph_)
    if not np.allclose(probabilities, classifier.probabilities_, atol=MAX_DEVIATION):
        largest = float(np.abs(probabilities - classifier.probabilities_).max())
        problem = (
            f"{folder}: the saved model gives other probabilities (by up to {largest:.2g}) than the fitted"
        )
        hint = "Please report this with the log; the predictions in the folder are those of the fitted model."
        raise PairNormError(problem, code="not-reproduced", value=str(folder), hint=hint)


def load(cls: type[Classifier], folder: str | PathLike[str]) -> Classifier:
    """Read a fitted classifier; see ``NodeClassifier.load``."""
    path = Path(folder)
    with locked_folder(path):
        facts, tensors = _read_facts(path), _read_tensors(path)
    return _restore(cls, path, facts, tensors)


def _restore(cls: type[Classifier], folder: Path, facts: Facts, tensors: dict[str, Tensor]) -> Classifier:
    """Build a classifier from the contents of its files."""
    for part in facts.parts:
        if "estimator" in part.settings:
            check_registered(part.candidate.model)
    try:
        _check_tensors(facts, tensors)
        parameters = {OLD_PARAMETERS.get(name, name): value for name, value in facts.parameters.items()}
        classifier = cls(**{name: _decode(value) for name, value in parameters.items()})
        classifier.model_ = Average(
            [_restore_part(part, number, tensors, facts) for number, part in enumerate(facts.parts)],
            KnownLabels.restore(tensors, len(facts.classes), "known."),
            tensors["fallback"],
            None if facts.smooth is None else Smoothing(facts.smooth.alpha, facts.smooth.power),
        )
        classifier.held_out_ = _restore_scores(facts)
        mean, deviation, words = (tensors.get(f"scaling.{name}") for name in ("mean", "deviation", "words"))
        classifier.calibration_ = _restore_calibration(tensors)
        classifier._seen, classifier._tested = tensors["seen"].numpy(), tensors["tested"].numpy()
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise _damaged(folder / FACTS, error) from error
    classifier.best_ = facts.average or facts.parts[0].candidate
    classifier.search_ = [classifier.best_]
    classifier.parts_ = [(weight, candidate) for weight, candidate, _ in classifier.model_.parts]
    classifier.prior_, classifier.tilt_ = np.array(facts.prior, dtype=np.float32), facts.tilt
    classifier.scaling_ = Scaling(facts.scaling, mean, deviation, words)
    classifier.classes_, classifier.n_features_in_ = np.array(facts.classes), facts.features
    classifier.encoder_, classifier.temperature_ = facts.encoder, facts.temperature
    classifier.split_ = Split(*torch.zeros(3, 0, dtype=torch.bool))
    return classifier


def _restore_part(
    part: SavedPart, number: int, tensors: dict[str, Tensor], facts: Facts
) -> tuple[int, Candidate, Fitted]:
    prefix = f"model.{number}."
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    saved = SavedState(part.candidate, part.settings, own, facts.features, len(facts.classes))
    kind = FittedEstimator if "estimator" in part.settings else KINDS[part.candidate.model]
    return part.weight, part.candidate, kind.restore(saved)


def _restore_calibration(tensors: dict[str, Tensor]) -> Calibration | None:
    scores, incomplete = (tensors.get(f"calibration.{name}") for name in Calibration._fields)
    if scores is None or incomplete is None:
        return None
    if scores.dim() != 1 or scores.shape != incomplete.shape or incomplete.dtype != torch.bool:
        raise ValueError("the calibration is not one score per held-out node")
    return Calibration(scores.double().numpy(), incomplete.numpy())


def _restore_scores(facts: Facts) -> Scores | None:
    if facts.held_out is None:
        return None
    confusion = np.array(facts.held_out.confusion, dtype=np.int64)
    if confusion.shape != (len(facts.classes),) * 2:
        raise ValueError(f"the confusion matrix is not that of {len(facts.classes)} classes")
    rest = {name: value for name, value in facts.held_out if name != "confusion" and value is not None}
    return Scores(confusion, **rest)


def _check_tensors(facts: Facts, tensors: dict[str, Tensor]) -> None:
    """Raise an error if a tensor has a wrong shape or is not finite."""
    for name, tensor in tensors.items():
        # A tree that splits missing from known values has an infinite threshold.
        valid = ~tensor.isnan() if name.endswith(".threshold") else tensor.isfinite()
        if not valid.all():
            raise ValueError(f"{name} is not finite")
    scaling = ("scaling.mean", "scaling.deviation") if facts.scaling == "columns" else ()
    for name in (*scaling, *(name for name in ("scaling.words",) if name in tensors)):
        if tensors[name].shape != (facts.features,):
            raise ValueError(f"{name} is of another number of features")
    if "scaling.words" in tensors and tensors["scaling.words"].dtype != torch.bool:
        raise ValueError("scaling.words are not booleans")
    if facts.encoder is not None and len(facts.encoder.feature_names) != facts.features:
        raise ValueError(f"{len(facts.encoder.feature_names)} names for {facts.features} features")
    classes = len(facts.classes)
    if tensors["fallback"].shape != (classes,) or not (tensors["fallback"] > 0).all():
        raise ValueError(f"the fallback probabilities are not those of {classes} classes")
    if len(facts.prior) != classes:
        raise ValueError(f"{len(facts.prior)} shares of {classes} classes")


def holds_model(folder: Path) -> bool:
    """Return whether a folder holds a saved model, in whatever version."""
    from pydantic_core import from_json

    try:
        facts = from_json((folder / FACTS).read_bytes()) if (folder / FACTS).is_file() else None
    except (OSError, ValueError):
        return False
    return isinstance(facts, dict) and {"format", "pairnorm"} <= facts.keys()


def _read_facts(folder: Path) -> Facts:
    path = folder / FACTS
    if not path.is_file():
        raise PairNormError(
            f"{folder}: there is no {FACTS}",
            code="file-missing",
            value=str(path),
            hint="Name a folder that NodeClassifier.save or `pairnorm fit --out` wrote; with "
            "--graph it writes no model.",
        )
    try:
        return Facts.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problems = {problem["loc"]: problem for problem in error.errors()}
        if version := problems.get(("format",)):
            number = None if version["type"] == "missing" else version["input"]
            problem, hint = f"{path}: format {quoted(number)} is not known", "Fit again with this version."
            raise PairNormError(
                problem, code="wrong-version", value=number, expected=str(FORMAT), hint=hint
            ) from error
        where, first = next(iter(problems.items()))
        raise _damaged(path, f"{'.'.join(map(str, where))}: {first['msg']}".lstrip(": ")) from error
    except (OSError, TypeError, ValueError, KeyError) as error:
        raise _damaged(path, error) from error


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / TENSORS
    try:
        if not path.is_file():  # reading a pipe would block
            raise FileNotFoundError("there is no such file")
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error
    return tensors


def _damaged(path: Path, problem: object) -> PairNormError:
    text = f"{path}: the saved model is damaged ({' '.join(str(problem).split())[:200]})"
    return PairNormError(text, code="file-damaged", value=str(path), hint="Fit again.")
