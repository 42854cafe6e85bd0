"""What all tests share: one thread, and a way to expect an error by its code."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

from pairnorm.errors import PairNormError
from pairnorm.sparse import quieten

quieten()  # tests make CSR tensors of their own
torch.set_num_threads(1)  # threads that wait for a busy core make small tensors slow

Raises = Callable[..., AbstractContextManager[pytest.ExceptionInfo[PairNormError]]]


@pytest.fixture
def raises() -> Raises:
    """Expect a PairNormError with a code, and with other fields where they are given.

    ``with raises("unknown-column", value="agee") as caught: ...``
    """

    @contextmanager
    def expect(code: str, **fields: object) -> Iterator[pytest.ExceptionInfo[PairNormError]]:
        with pytest.raises(PairNormError) as caught:
            yield caught
        assert caught.value.code == code, caught.value
        for name, wanted in fields.items():
            assert getattr(caught.value, name) == wanted, caught.value

    return expect
