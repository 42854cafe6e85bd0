"""Save and load a fitted classifier: tensors as safetensors, the rest as JSON. Nothing is unpickled.

Also the folder of a run, which appears as a whole and holds nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, ValidationError
from torch import Tensor

from pairnorm import __version__
from pairnorm.base.errors import PairNormError, quoted
from pairnorm.base.files import atomic_folder, check_not_file, drafts_in, locked_folder
from pairnorm.classify.candidates import KINDS, Average, Candidate
from pairnorm.classify.candidates.boosted_trees import FittedEstimator, check_registered
from pairnorm.classify.candidates.ensemble import Smoothing
from pairnorm.classify.candidates.task import KnownLabels, SavedState
from pairnorm.classify.evaluation import Scores
from pairnorm.classify.predictions import PREDICTION_FILES, Calibration
from pairnorm.classify.scaling import Scaling
from pairnorm.classify.search_space import IMPUTATIONS, MAX_DEPTH, MAX_SCALE
from pairnorm.data import Encoder, Split

if TYPE_CHECKING:
    from pairnorm.classify.classifier import NodeClassifier


Classifier = TypeVar("Classifier", bound="NodeClassifier")

FORMAT = 8
# A loaded model may differ by rounding.
MAX_DEVIATION = 1e-4
TENSORS, FACTS = "model.safetensors", "model.json"
REPORT, PAGE = "report.md", "report.html"
REPORT_FILES = {REPORT, PAGE, "smoothing.png", "confusion.png", "comparison.png", "depth.png"}
OUTPUT_FILES = {*PREDICTION_FILES, FACTS, TENSORS, *REPORT_FILES}
"""All that a run may write."""


def _check_candidate(value: Any) -> Any:
    """Validate the fields of a candidate in a file; null stands for NaN."""
    if not isinstance(value, dict):
        return value
    if set(value) != {field.name for field in fields(Candidate)}:
        raise ValueError("a candidate has other fields")
    if not (0 <= value["depth"] <= MAX_DEPTH and 0 < value["scale"] <= MAX_SCALE):
        raise ValueError("depth or scale is out of range")
    if value["imputation"] not in IMPUTATIONS:
        raise ValueError(f"the imputation {quoted(value['imputation'])} is not known")
    losses = ("validation_accuracy", "validation_loss")
    known = {name: part for name, part in value.items() if part is not None or name not in losses}
    return known | {"parts": tuple(value["parts"])}


SavedCandidate = Annotated[Candidate, BeforeValidator(_check_candidate)]


class _Schema(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class SavedPart(_Schema):
    """A member of the ensemble: its weight, and its settings."""

    weight: Annotated[int, Field(ge=1)]
    candidate: SavedCandidate
    settings: dict[str, Any]


class SavedScores(_Schema):
    """The ``Scores`` on held-out nodes; null stands for NaN."""

    confusion: list[list[Annotated[int, Field(ge=0, le=2**53)]]]
    auc: float | None
    average_precision: float | None


class Facts(_Schema):
    """All of ``model.json``; ``smooth`` has the fields of ``Smoothing``."""

    format: Literal[8]
    pairnorm: str
    parameters: dict[str, Any]
    average: SavedCandidate | None
    parts: Annotated[list[SavedPart], Field(min_length=1)]
    smooth: (
        tuple[Annotated[FiniteFloat, Field(ge=0, lt=1)], Annotated[FiniteFloat, Field(gt=0, le=100)]] | None
    )
    classes: Annotated[
        list[str] | list[bool] | list[Annotated[int, Field(gt=-(2**63), lt=2**63)]], Field(min_length=1)
    ]
    features: Annotated[int, Field(ge=1)]
    encoder: Encoder | None
    scaling: Literal["rows", "columns", "none"]
    temperature: Annotated[FiniteFloat, Field(gt=1e-6)]
    tilt: Annotated[FiniteFloat, Field(ge=0, le=1)]
    held_out: SavedScores | None


def _check_tensors(facts: Facts, tensors: dict[str, Tensor]) -> None:
    """Check that tensors are finite; outside the members, which check their own, also types and lengths."""
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{name} is not finite")
    classes, features = len(facts.classes), facts.features
    # A length is a number, or the name of one that several tensors share.
    schema: dict[str, tuple[torch.dtype, int | str]] = {
        "known.names": (torch.int64, "known"),
        "known.labels": (torch.int64, "known"),
        "fallback": (torch.float32, classes),
        "prior": (torch.float32, classes),
        "seen": (torch.int64, "seen"),
        "tested": (torch.int64, "tested"),
    }
    if facts.scaling == "columns":
        schema |= {"scaling.mean": (torch.float32, features), "scaling.deviation": (torch.float32, features)}
    if "scaling.words" in tensors:
        schema["scaling.words"] = torch.bool, features
    if any(name.startswith("calibration.") for name in tensors):
        schema |= {
            "calibration.scores": (torch.float64, "held out"),
            "calibration.incomplete": (torch.bool, "held out"),
        }
    lengths: dict[str, int] = {}
    for name, (dtype, length) in schema.items():
        tensor = tensors[name]
        size = lengths.setdefault(length, len(tensor)) if isinstance(length, str) else length
        if tensor.dtype != dtype or tensor.shape != (size,):
            raise ValueError(f"{name} is not {size} numbers of type {dtype}")
    if not all((tensors[name] > 0).all() for name in ("fallback", "prior")):
        raise ValueError("shares of classes are not above 0")
    if facts.encoder is not None and len(facts.encoder.feature_names) != features:
        raise ValueError(f"{len(facts.encoder.feature_names)} names for {features} features")


def save(classifier: NodeClassifier, folder: str | PathLike[str]) -> None:
    """Write a fitted classifier into a folder; see ``NodeClassifier.save``."""
    from safetensors.torch import save as to_bytes

    model, scaling, scores = classifier.model_, classifier.scaling_, classifier.held_out_
    arrays: dict[str, Any] = {
        "known.names": model.known.names,
        "known.labels": model.known.labels,
        "fallback": model.fallback_probabilities,
        "prior": classifier.prior_,
        "seen": classifier._seen,
        "tested": classifier._tested,
    }
    parts: list[SavedPart] = []
    for number, (weight, candidate, fitted) in enumerate(model.parts):
        settings, state = fitted.state()
        arrays |= {f"model.{number}.{name}": value for name, value in state.items()}
        parts.append(SavedPart(weight=weight, candidate=candidate, settings=settings))
    if classifier.calibration_ is not None:
        arrays |= {
            f"calibration.{name}": values for name, values in classifier.calibration_._asdict().items()
        }
    arrays |= {f"scaling.{name}": getattr(scaling, name) for name in ("mean", "deviation", "words")}
    # Members may share statistics, which the file holds for each.
    tensors = {
        name: torch.as_tensor(value).detach().cpu().contiguous().clone()
        for name, value in arrays.items()
        if value is not None
    }
    parameters = {
        name: {"tuple": list(value)} if isinstance(value, tuple) else value
        for name, value in classifier.get_params().items()
    }
    facts = Facts.model_validate(
        {
            "format": FORMAT,
            "pairnorm": __version__,
            "parameters": parameters,
            "average": classifier.best_ if classifier.best_.model == "average" else None,
            "parts": parts,
            "smooth": model.smooth,
            "classes": classifier.classes_.tolist(),
            "features": classifier.n_features_in_,
            "encoder": classifier.encoder_,
            "scaling": scaling.kind,
            "temperature": classifier.temperature_,
            "tilt": classifier.tilt_,
            "held_out": scores and asdict(scores) | {"confusion": scores.confusion.tolist()},
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


def verify(classifier: NodeClassifier, folder: Path) -> None:
    """Load a saved model, whose folder is locked, and raise an error unless it predicts as the fitted one."""
    loaded = _restore(type(classifier), folder, _read_facts(folder), _read_tensors(folder))
    probabilities = loaded.set_params(device=classifier.device).predict_proba(classifier.graph_)
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
        parameters: dict[str, Any] = {
            name: tuple(value["tuple"]) if isinstance(value, dict) else value
            for name, value in facts.parameters.items()
        }
        classifier, members = cls(**parameters), []
        for number, part in enumerate(facts.parts):
            kind: Any = FittedEstimator if "estimator" in part.settings else KINDS[part.candidate.model]
            weights = _tensors_of(f"model.{number}", tensors)
            saved = SavedState(part.candidate, part.settings, weights, facts.features, len(facts.classes))
            members.append((part.weight, part.candidate, kind.restore(saved)))
        known = KnownLabels.restore(tensors, len(facts.classes), "known.")
        smooth = None if facts.smooth is None else Smoothing(*facts.smooth)
        classifier.model_ = Average(members, known, tensors["fallback"], smooth)
        classifier.held_out_ = _restore_scores(facts)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise _damaged(folder / FACTS, error) from error
    calibration = {name: tensor.numpy() for name, tensor in _tensors_of("calibration", tensors).items()}
    classifier.calibration_ = Calibration(**calibration) if calibration else None
    classifier._seen, classifier._tested = tensors["seen"].numpy(), tensors["tested"].numpy()
    classifier.best_ = facts.average or facts.parts[0].candidate
    classifier.search_ = [classifier.best_]
    classifier.parts_ = [(part.weight, part.candidate) for part in facts.parts]
    classifier.prior_, classifier.tilt_ = tensors["prior"].numpy(), facts.tilt
    classifier.scaling_ = Scaling(facts.scaling, **_tensors_of("scaling", tensors))
    classifier.classes_, classifier.n_features_in_ = np.array(facts.classes), facts.features
    classifier.encoder_, classifier.temperature_ = facts.encoder, facts.temperature
    classifier.split_ = Split(*torch.zeros(3, 0, dtype=torch.bool))
    return classifier


def _tensors_of(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    prefix += "."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _restore_scores(facts: Facts) -> Scores | None:
    if facts.held_out is None:
        return None
    confusion = np.array(facts.held_out.confusion, dtype=np.int64)
    if confusion.shape != (len(facts.classes),) * 2:
        raise ValueError(f"the confusion matrix is not that of {len(facts.classes)} classes")
    metrics = {name: value for name, value in facts.held_out if name != "confusion" and value is not None}
    return Scores(confusion, **metrics)


def _is_file(path: Path) -> bool:
    """Return whether there is a file with contents. Reading a pipe, or a file of the kernel, may block."""
    return path.is_file() and path.stat().st_size > 0


def holds_model(folder: Path) -> bool:
    """Return whether a folder holds a saved model of any version."""
    from pydantic_core import from_json

    try:
        facts = from_json((folder / FACTS).read_bytes()) if _is_file(folder / FACTS) else None
    except (OSError, ValueError):
        return False
    return isinstance(facts, dict) and {"format", "pairnorm"} <= facts.keys()


def _read_facts(folder: Path) -> Facts:
    from pydantic_core import from_json

    path = folder / FACTS
    if not path.is_file():
        hint = "Name a folder that NodeClassifier.save or `pairnorm fit --out` wrote (without --graph)."
        raise PairNormError(f"{folder}: there is no {FACTS}", code="file-missing", value=str(path), hint=hint)
    try:
        text = path.read_bytes() if _is_file(path) else b""
        number = from_json(text).get("format", FORMAT)
        facts = Facts.model_validate_json(text) if number == FORMAT else None
    except ValidationError as error:
        first = error.errors()[0]
        raise _damaged(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (OSError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise _damaged(path, error) from error
    if facts is None:
        problem, hint = f"{path}: format {quoted(number)} is not known", "Fit again with this version."
        raise PairNormError(problem, code="wrong-version", value=number, expected=str(FORMAT), hint=hint)
    return facts


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    path = folder / TENSORS
    try:
        if not _is_file(path):
            raise FileNotFoundError("there is no such file")
        return dict(from_bytes(path.read_bytes()))  # a path that is not UTF-8 is refused
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, problem: object) -> PairNormError:
    text = f"{path}: the saved model is damaged ({' '.join(str(problem).split())[:200]})"
    return PairNormError(text, code="file-damaged", value=str(path), hint="Fit again.")


@contextmanager
def result_folder(folder: Path, names: Collection[str] = OUTPUT_FILES) -> Iterator[Path]:
    """Give a folder for drafts, which move into ``folder`` at the end; after an error, nothing has changed.

    Args:
        folder: absent, empty, or with the output of an earlier run.
        names: files to replace or, where the drafts have no such file, to remove. Other files stay.
    """
    check_folder(folder)
    with atomic_folder(folder, names) as drafts:
        yield drafts


def check_folder(folder: Path) -> None:
    """Raise an error if a folder holds files other than those of an earlier run."""
    check_not_file(folder)
    with locked_folder(folder):
        pass
    if not folder.is_dir() or holds_model(folder):
        return
    others = set(folder.iterdir()) - set(drafts_in(folder, folder.resolve()))
    names = {path.name for path in others}
    # A run on a packed graph writes no model.
    if others and not {PREDICTION_FILES[0], REPORT} <= names <= OUTPUT_FILES:
        problem = f"{folder}: the folder holds files that no run wrote"
        hint = "Choose another, such as a new one in it."
        raise PairNormError(problem, code="foreign-folder", value=str(folder), hint=hint)
