import pickle
import shlex

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pairnorm.base.errors import PairNormError, quoted, real_number, redact, register_password, whole_number


def test_pickled_error_keeps_its_fields():
    error = PairNormError(
        "a b", code="unknown-column", value=3, expected="x", hint="Pass {ignore}.", ignore=["b"]
    )
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.typed()) == (str(error), error.typed())
    assert vars(again) == vars(error)


def test_location_is_added_once():
    error = PairNormError("line 3 is short", code="file-damaged", hint="Mend it.")
    placed = error.within("n.csv").within("n.csv")
    assert str(placed) == "n.csv: line 3 is short. Mend it."
    assert (placed.code, str(error)) == ("file-damaged", "line 3 is short. Mend it.")


@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=3))
def test_typed_options_are_shell_quoted(names):
    assume(all(redact(name) == name for name in names))  # passwords are masked on purpose
    typed = PairNormError("no", hint="{unknown_edges}", unknown_edges=names).typed()
    words = shlex.split(typed.removeprefix("no. "))
    assert words == [word for name in names for word in ("--unknown-edges", name)]


def test_braces_in_values_are_not_placeholders():
    error = PairNormError("column '{x}'", hint="Pass {ignore} or {keep}.", ignore=["{keep}"], keep=...)
    assert str(error) == "column '{x}'. Pass ignore=['{keep}'] or keep=...."


@given(st.text(max_size=300), st.integers(5, 80))
def test_quoted_text_respects_the_length_limit(text, most):
    shown = quoted(text, most)
    assert len(shown) <= most
    # Backslashes are as in the file, so that a search for the text finds it.
    assert shown == repr(text).replace(r"\\", "\\") or shown.endswith("…")


def test_message_shortens_a_long_problem_and_keeps_the_hint():
    error = PairNormError(f"it holds map<{'x' * 9000}>", expected="a text", hint="Check the file.")
    for message in (str(error), error.typed()):
        assert len(message) < 1100
        assert message.startswith("it holds map<x")
        assert message.endswith("x…; expected a text. Check the file.")


@pytest.mark.parametrize("value", [True, "3", 2.0, None, -1, 11])
def test_invalid_whole_number_raises(value, raises):
    with raises("not-a-whole-number", value=value):
        whole_number("depth", value, most=10)


@pytest.mark.parametrize("value", [True, "3", float("nan"), float("inf"), None, 0, 1.5])
def test_invalid_real_number_raises(value, raises):
    with raises("not-a-number"):
        real_number("rate", value, above=0, most=1)


def test_numpy_numbers_become_python_numbers():
    assert type(whole_number("depth", np.int64(3))) is int
    assert type(real_number("scale", np.float32(0.5))) is float
    assert str(real_number("scale", -0.0)) == "0.0"


def test_short_password_does_not_mask_other_words():
    register_password("postgresql://ann:risk@host/bank")
    assert redact("the riskiest asterisk, risk_level, frisk42, 'at-risk'") == (
        "the riskiest asterisk, risk_level, frisk42, 'at-***'"
    )


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ann:risk@host/bank",
        "cannot connect to postgresql://ann:risk@host/bank?sslmode=x",
        "'postgresql://ann:risk@[bad/bank'",
        "host 'risk@host' is unknown",
        "password=risk host=x",
        "odbc://x/?odbc_connect=DRIVER%3Dx%3BPWD%3Drisk%3B",
        "connection ann:risk refused",
        "[('user', 'ann'), ('password', 'risk')]",
        r"line 1\nrisk\n",
    ],
)
def test_short_password_is_masked_alone_and_in_urls(text):
    register_password("postgresql://ann:risk@host/bank")
    assert "risk" not in redact(text)
