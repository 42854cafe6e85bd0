"""PairNorm: centre node representations, then rescale them to a constant total pairwise squared distance."""

from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from pairnorm.errors import PairNormError, one_of, real_number
from pairnorm.nn.ops.moments import Groups
from pairnorm.nn.ops.pair_norm.plain import centre_and_scale, scale_and_centre

Mode = Literal["PN", "PN-SI", "PN-SCS"]
MODES: tuple[Mode, ...] = get_args(Mode)


def pair_norm(
    x: Tensor,
    scale: float = 1.0,
    mode: Mode = "PN",
    eps: float = 1e-6,
    batch: Tensor | None = None,
    batch_size: int | None = None,
) -> Tensor:
    r"""Normalise node representations so that they cannot all become alike.

    With $\mathbf{x}^c_i = \mathbf{x}_i - \frac{1}{n} \sum_j \mathbf{x}_j$:

    $$
    \begin{aligned}
    \text{PN:} \quad
        & s \, \mathbf{x}^c_i
        \Big/ \sqrt{\tfrac{1}{n} \textstyle\sum_j \|\mathbf{x}^c_j\|_2^2 + \epsilon} \\
    \text{PN-SI:} \quad & s \, \mathbf{x}^c_i \Big/ \sqrt{\|\mathbf{x}^c_i\|_2^2 + \epsilon} \\
    \text{PN-SCS:} \quad
        & s \, \mathbf{x}_i \Big/ \sqrt{\|\mathbf{x}_i\|_2^2 + \epsilon}
        - \tfrac{1}{n} \textstyle\sum_j \mathbf{x}_j
    \end{aligned}
    $$

    Statistics accumulate in float32 for half precision (float64 for float64); the output has the dtype of
    the input.

    Args:
        x: Node representations ``[nodes, features]``, or ``[nodes, ..., features]``: every index of the
            middle axes (trials) is normalised on its own.
        scale: The paper's $s$. After ``PN`` the total pairwise squared distance is $2 n^2 s^2$.
        mode: ``"PN"``, ``"PN-SI"`` (every row scaled individually) or ``"PN-SCS"`` (rows scaled, then
            centred).
        eps: Added inside the root, so that the gradient at a zero row is at most ``scale / sqrt(eps)``.
        batch: The graph of each node, in any order; every graph is normalised on its own.
        batch_size: The number of graphs. Given, it saves a device synchronisation and a graph break under
            ``torch.compile``.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
        >>> pair_norm(x)
        tensor([[-1.0000,  0.0000],
                [ 1.0000,  0.0000]])
    """
    _check_settings(scale, mode, eps)
    return _pair_norm(x, scale, mode, eps, batch, batch_size)


def _pair_norm(
    x: Tensor, scale: float, mode: Mode, eps: float, batch: Tensor | None, batch_size: int | None
) -> Tensor:
    if x.layout != torch.strided:
        raise PairNormError(
            f"x has layout {x.layout}",
            code="wrong-type",
            value=x.layout,
            expected="a dense tensor",
            remedy="Call x.to_dense() first.",
        )
    if not x.is_floating_point():
        raise PairNormError(
            f"x has dtype {x.dtype}",
            code="wrong-type",
            value=x.dtype,
            expected="a floating-point tensor",
            remedy="Call x.float() first.",
        )
    if x.dim() < 2:
        raise PairNormError(
            f"x has shape {list(x.shape)}",
            code="wrong-shape",
            value=list(x.shape),
            expected="[nodes, features] or [nodes, ..., features]",
        )
    groups = Groups.of(x, batch, batch_size)
    if mode == "PN-SCS":
        return scale_and_centre(x, groups, scale, eps)
    return centre_and_scale(x, groups, scale, eps, individually=mode == "PN-SI")


class PairNorm(nn.Module):
    """The layer form of ``pair_norm``: no parameters, no buffers, usable after any graph convolution.

    Args:
        scale: The paper's s, which sets the constant total pairwise squared distance 2 n² s².
        mode: ``"PN"``, ``"PN-SI"`` or ``"PN-SCS"``; see ``pair_norm``.
        eps: Added inside the root.

    Example:
        >>> PairNorm(scale=10, mode="PN-SI")
        PairNorm(scale=10, mode='PN-SI', eps=1e-06)
    """

    def __init__(self, scale: float = 1.0, mode: Mode = "PN", eps: float = 1e-6) -> None:
        super().__init__()
        _check_settings(scale, mode, eps)
        self.scale, self.mode, self.eps = scale, mode, eps

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalise ``x``; see ``pair_norm`` for the arguments."""
        return _pair_norm(x, self.scale, self.mode, self.eps, batch, batch_size)

    if TYPE_CHECKING:

        def __call__(  # noqa: D102
            self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None
        ) -> Tensor: ...

    def __repr__(self) -> str:
        return f"PairNorm(scale={self.scale}, mode={self.mode!r}, eps={self.eps})"


def _check_settings(scale: Any, mode: Any, eps: Any) -> None:
    one_of("mode", mode, MODES)
    for name, value in (("scale", scale), ("eps", eps)):
        if isinstance(value, Tensor):
            raise PairNormError(
                f"{name} is a tensor of shape {list(value.shape)}",
                code="not-a-number",
                value=value,
                expected="a number",
                remedy="Call its item(); to learn a scale, multiply the result by it.",
            )
    real_number("scale", scale, above=0)
    # In single precision, where the statistics are, a smaller one is zero and a zero row is divided by it.
    real_number("eps", eps, least=torch.finfo(torch.float32).tiny)
