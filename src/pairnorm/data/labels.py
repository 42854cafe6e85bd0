"""Read labels and the split from tables, and note names that differ in their spelling only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import quoted
from pairnorm.data.encoder import EACH
from pairnorm.data.features import UNKNOWN, class_sort_key
from pairnorm.data.files import quote_names
from pairnorm.data.ids import near_duplicate_notes, plain_form
from pairnorm.data.masks import Split
from pairnorm.data.profile import MISSING_WORDS, NAME_SHARE

if TYPE_CHECKING:
    import pandas

    from pairnorm.data.encoder import ColumnOptions, Encoder
    from pairnorm.data.tables import Table

PARTS = {"train": 0, "training": 0, "validation": 1, "valid": 1, "val": 1, "dev": 1, "test": 2}
# More different numbers than this, with fewer nodes each, ask for a regression.
MAX_NUMBERS, MIN_NODES_PER_NUMBER = 100, 20
MAX_FRACTIONS = 20
WITHOUT_FRACTION = re.compile(r"-?\d+([.,]0+)?", re.ASCII)
# More different texts than this, with fewer nodes each, are names.
MAX_TEXT_CLASSES, MIN_NODES_PER_TEXT = 20, 2
MAX_COMPARED_CLASSES = 300
WITH_UNIT = re.compile(r"[^\w\s]?\s?[+-]?\d[\d.,' ]*\s?([^\w\s]|[^\W\d_]{1,3})?")
MIN_WITH_UNIT = 20


def read_labels(
    table: Table,
    name: str,
    cells: pandas.Series,
    options: ColumnOptions,
    known: Sequence[str] | None = None,
) -> tuple[Tensor, tuple[str, ...]]:
    """Return the class of each node, -1 where the cell is empty, and the names of the classes in order.

    A class that is not among the ``known`` ones is noted and taken as unknown, or refused if ``strict``.
    """
    profile, codes = table.profile(name, cells)
    counts = dict(zip(profile.texts, profile.counts.tolist(), strict=True))
    classes = choose_classes(table, name, counts, options, known)
    names = tuple(known or sorted({*classes.values()}, key=class_sort_key))
    numbers = {value: number for number, value in enumerate(names)}
    of_texts = np.array([*(numbers.get(value, UNKNOWN) for value in classes.values()), UNKNOWN])
    labels = of_texts[codes]
    new = {value: number for number, value in enumerate(classes.values()) if value not in numbers}
    if new and options.strict:
        value, number = next(iter(new.items()))
        problem = f"class {quoted(value)} is unknown to the model, which has {quote_names(names, 7)}"
        row, hint = int((codes == number).argmax()), "Empty it or fit again."
        table.reject(row, problem, code="unknown-class", value=value, hint=hint)
    if new:
        count = int(((codes >= 0) & (labels == UNKNOWN)).sum())
        table.notes.append(
            f"{count:,} {'node has' if count == 1 else 'nodes have'} a class in column {quoted(name)} that "
            f"is unknown to the model, such as {quote_names([*new], 3)}: such labels count as unknown, and "
            "the model never predicts them"
        )
    return torch.from_numpy(labels), names


def known_labels(counts: Mapping[str, int], words: Sequence[str]) -> dict[str, int]:
    """Return the texts of a label column except words for an unknown class, in any case.

    >>> known_labels({"yes": 7, "Unknown ": 3}, ["unknown"])
    {'yes': 7}
    """
    forms = set(map(plain_form, words))
    return {text: count for text, count in counts.items() if plain_form(text) not in forms}


def read_classes(
    table: Table, frame: pandas.DataFrame, options: ColumnOptions, known: Encoder | None
) -> tuple[dict[str, Any], tuple[float, ...]]:
    """Read labels, class names and split from the named columns, and the cuts of a numeric label."""
    bins = () if known is None else known.bins
    if options.label is None:
        return {}, bins
    cells = frame[options.label]
    if options.unknown_label:
        profile, codes = table.profile(options.label, cells)
        kept = known_labels(dict.fromkeys(profile.texts, 1), options.unknown_label)
        cells = cells.mask(np.array([*(text not in kept for text in profile.texts), False])[codes])
    expected = None if known is None else next((c.categories for c in known.named("label")), None)
    if isinstance(options.classes, int):
        bins = find_bins(table, options.label, cells, options.classes)
    values = table.numbers(options.label, cells) if bins else None
    if values is not None:
        labels, names = torch.from_numpy(bin_codes(values, bins)), expected or bin_names(bins)
    else:
        expected = expected or (bin_names(bins) if bins else None)
        labels, names = read_labels(table, options.label, cells, options, expected)
    # A text file does not distinguish numbers from texts: there they are read as ids are.
    numbered = table.text is not None or not any(isinstance(cell, str) for cell in cells)
    parts: dict[str, Any] = {"labels": labels, "class_names": names, "numbered": numbered}
    if options.split is not None:
        parts |= read_split(table, options.split, frame[options.split], labels, names)._asdict()
    return parts, bins


def choose_classes(
    table: Table,
    name: str,
    counts: Mapping[str, int],
    options: ColumnOptions,
    known: Sequence[str] | None = None,
) -> dict[str, str]:
    """Map each text of a label column to its class; raise an error for texts that cannot be classes."""
    merge = bool(options.merge_classes)
    classes = {text: text for text in counts}
    if table.text is not None and not (known is not None and classes.keys() <= {*known}):
        classes = drop_zero_fractions(counts)
    totals = Counter[str]()
    for text, count in counts.items():
        totals[classes[text]] += count
    if known is not None:
        if not merge:
            return classes
        matching = {
            value: next((label for label in known if _is_variant(value, label)), value)
            for value in {*classes.values()}.difference(known)
        }
        return {text: matching.get(value, value) for text, value in classes.items()}
    variants = class_variants(totals)
    if merge and variants:
        classes = {text: variants.get(value, value) for text, value in classes.items()}
        totals = Counter({value: count for value, count in totals.items() if value not in variants})
    if variants:
        first, second = next(iter(variants.items()))
        example = f"such as {quoted(first)} and {quoted(second)}"
        done = f"are merged, {example}"
        if not merge:
            done = f"differ by case, spaces or one letter, {example}; --merge-classes merges them"
        total = len(totals) + merge * len(variants)
        table.notes.append(f"classes of column {quoted(name)} {done} ({len(variants):,} of {total:,})")
    if len(totals) < 2:
        problem, hint = f"no node has a label: column {quoted(name)} is empty throughout", "Label some nodes."
        if totals:
            problem = f"column {quoted(name)} holds one class only, {quoted(next(iter(totals)))}"
            hint = "Label some of another."
        table.reject(None, problem, "too-few-classes", value=len(totals), hint=hint)
    if options.classes != EACH:
        _check_classes(table, name, list(totals), sum(counts.values()))
    return classes


def class_variants(totals: Mapping[str, int]) -> dict[str, str]:
    """Return the class that each variant stands for: the most frequent one of the same spelling.

    Spelling ignores case, spaces and Unicode form. A rare class of four letters or more that differs by one
    letter from one that is ten times as frequent is a variant, too.

    >>> class_variants({"GOP": 900, "Gop": 2, "dem": 700, "demm": 3, "low": 5, "lower": 9})
    {'demm': 'dem', 'Gop': 'GOP'}
    """
    if len(totals) > MAX_COMPARED_CLASSES:
        return {}
    ordered = sorted(totals, key=lambda name: (-totals[name], name))
    variants: dict[str, str] = {}
    for place, name in enumerate(ordered):
        others = (other for other in ordered[:place] if other not in variants)
        similar = (other for other in others if _is_variant(name, other, 10 * totals[name] <= totals[other]))
        if (other := next(similar, None)) is not None:
            variants[name] = other
    return variants


def _is_variant(name: str, other: str, is_rare: bool = True) -> bool:
    """Return whether two texts have the same spelling or, for a rare one, differ by one letter."""
    if plain_form(name) == plain_form(other):
        return True
    return is_rare and _one_letter_apart(name.lower(), other.lower())


def _one_letter_apart(first: str, second: str) -> bool:
    """Return whether a word of four letters or more differs by one added, left out or replaced letter."""
    short, long = sorted((first, second), key=len)
    if len(first) < 4 or len(short) < max(3, len(long) - 1) or any(map(str.isdecimal, long)):
        return False
    start = next((i for i, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    return short[start:] == long[start + 1 :] or short[start + 1 :] == long[start + 1 :]


def drop_zero_fractions(texts: Iterable[str]) -> dict[str, str]:
    """Map each label text to its class: ``'1.0'`` becomes ``'1'`` if all labels are whole numbers.

    Pandas writes whole numbers with ``.0`` if other cells of the column are empty.

    >>> drop_zero_fractions(["0.0", "1.0"]), drop_zero_fractions(["0.5", "1.0"])
    ({'0.0': '0', '1.0': '1'}, {'0.5': '0.5', '1.0': '1.0'})
    """
    listed = list(texts)
    all_integers = all(WITHOUT_FRACTION.fullmatch(text) for text in listed)
    return {text: re.split("[.,]", text)[0] if all_integers else text for text in listed}


def _check_classes(table: Table, name: str, classes: Sequence[str], labeled: int) -> None:
    """Raise an error for labels that are measurements, which ask for a regression, or names of nodes."""
    try:  # the last comma or point may be decimal; others separate thousands
        values = np.array([float(re.sub("[.,](?=.*[.,])", "", text).replace(",", ".")) for text in classes])
    except ValueError:
        if len(classes) > MAX_TEXT_CLASSES and labeled < MIN_NODES_PER_TEXT * len(classes):
            problem = f"column {quoted(name)} holds {len(classes):,} different texts on {labeled:,} nodes: "
            problem += "names rather than classes"
            more = {"hint": "Name another column, or pass {classes} if each is a class.", "classes": EACH}
            more["expected"] = "classes of several nodes each"
            table.reject(None, problem, "too-many-classes", value=len(classes), **more)
        return
    limit = MAX_NUMBERS if (values == np.floor(values)).all() else MAX_FRACTIONS
    if len(classes) > limit and (limit == MAX_FRACTIONS or labeled < MIN_NODES_PER_NUMBER * len(classes)):
        problem = f"column {quoted(name)} holds {len(classes):,} different numbers: to predict them is "
        problem += "regression, which this is not made for"
        hint = f"{{classes}} cuts it into classes of equal size; {EACH!r} in place of the number makes "
        hint += "every number a class."
        count, expected = len(classes), "a column of classes"
        table.reject(None, problem, "numeric-label", value=count, expected=expected, hint=hint, classes=5)


def find_bins(table: Table, name: str, cells: pandas.Series, classes: int) -> tuple[float, ...]:
    """Return where to cut a numeric label so that classes have as equal numbers of nodes as possible."""
    values = table.numbers(name, cells)
    if values is None or np.isnan(values).all():
        reject_bins(table, name, classes)
    there = values[~np.isnan(values)].astype(np.float64)
    return cut_points(np.quantile(there, np.arange(1, classes) / classes), there.min())


def reject_bins(table: Table, name: str, classes: int) -> NoReturn:
    """Raise an error about a label that the user wants cut into ranges, but that holds texts."""
    problem = f"column {quoted(name)} holds no numbers, but classes is {classes}"
    hint = "Leave it out: {classes}"
    table.reject(None, problem, code="not-a-number", value=name, hint=hint, classes=classes)


def cut_points(quantiles: Iterable[float], low: float) -> tuple[float, ...]:
    """Return rounded quantiles, without repetitions and without those that leave a class empty."""
    cuts = {float(f"{cut:.6g}") for cut in quantiles}
    return tuple(sorted(cut for cut in cuts if cut > low))


def bin_names(bins: Sequence[float]) -> tuple[str, ...]:
    """Return the name of each class between cuts.

    >>> bin_names([10, 20.5])
    ('below 10', '10 to 20.5', '20.5 or more')
    """
    between = (f"{low:g} to {high:g}" for low, high in pairwise(bins))
    return (f"below {bins[0]:g}", *between, f"{bins[-1]:g} or more")


def bin_codes(values: NDArray[Any], bins: Sequence[float]) -> NDArray[np.int64]:
    """Return the number of the class that each number falls into, -1 for NaN."""
    return np.where(np.isnan(values), UNKNOWN, np.searchsorted(bins, values, side="right"))


def read_split(
    table: Table, name: str, cells: pandas.Series, labels: Tensor, class_names: Sequence[str]
) -> Split:
    """Return the three masks that a column of 'train', 'validation', 'test' or nothing describes."""
    profile, codes = table.profile(name, cells)
    for number, text in enumerate(profile.texts):
        if text.lower() not in PARTS:
            reject_part(table, name, text, int((codes == number).argmax()))
    parts = np.array([*(PARTS[text.lower()] for text in profile.texts), -1])[codes]
    blank = (parts >= 0) & (labels.numpy() < 0)
    if blank.any():
        row = int(blank.argmax())
        problem = f"the node is in {quoted(profile.texts[codes[row]])} but has no label"
        table.reject(row, problem, code="label-missing", hint=f"Label it, or empty its {quoted(name)} cell.")
    check_training(
        table, name, np.bincount(labels.numpy()[parts == 0], minlength=len(class_names)), class_names
    )
    return Split(*(torch.from_numpy(parts == number) for number in range(3)))


def reject_part(table: Table, name: str, text: str, row: int | None = None) -> NoReturn:
    """Raise an error about a cell of the split column that is no name of a part, such as 'train'."""
    expected = "'train', 'validation', 'test' or an empty cell"
    table.reject(
        row, f"{quoted(text)} in column {quoted(name)}", "unknown-part", value=text, expected=expected
    )


def check_training(table: Table, name: str, counts: NDArray[Any], class_names: Sequence[str]) -> None:
    """Raise an error about a class that has no training node."""
    if (counts == 0).any():
        empty = class_names[int((counts == 0).argmax())]
        problem = f"class {quoted(empty)} has no training node"
        hint = f"Mark one of its nodes 'train' in column {quoted(name)}."
        table.reject(None, problem, "class-without-training", value=empty, hint=hint)


def encoder_notes(encoder: Encoder, classes: Sequence[str], options: ColumnOptions) -> tuple[str, ...]:
    """Return notes on what may be unintended: no features, near-duplicates, numbers or missing values."""
    notes = []
    if not encoder.features:
        notes.append("there are no feature columns: fit takes degrees and other structure instead")
    # Classes -1 and 1 are plausible, and so is any negative number among others.
    minus = len(classes) > 2 and all(name.isdecimal() for name in classes if name != "-1")
    notes += [
        f"{quoted(name)} is read as a class; --unknown-label {quoted(name)} reads it as unknown"
        for name in classes
        if name in MISSING_WORDS or name.lower() == "unknown" or (minus and name == "-1")
    ]
    for column in encoder.named("category"):
        where = f"texts in column {quoted(column.name)}"
        notes += near_duplicate_notes(column.categories, where, "categories")
        if column.name not in (*options.categorical, *options.keep):
            notes += unit_note(column.name, column.categories)
        for word in (word for word in column.categories if word in MISSING_WORDS):
            where = f"{word!r} in column {quoted(column.name)}"
            notes.append(f"{where} is read as a category; empty the cells if it means missing")
    return tuple(notes)


def unit_note(name: str, categories: Sequence[str]) -> list[str]:
    """Return a note where many categories are numbers with a unit, such as ``'12 kg'``."""
    texts = [word for word in categories if WITH_UNIT.fullmatch(word) and not word.isdecimal()]
    if len(texts) < max(MIN_WITH_UNIT, NAME_SHARE * len(categories)):
        return []
    where = f"{len(categories):,} texts in column {quoted(name)} are read as categories"
    return [
        f"{where}, though they look like numbers, such as {quoted(texts[0])}; write plain numbers if they are"
    ]
