import pytest
import torch

from pairnorm.nn.ops._triton.sparse_product import propagate
from pairnorm.train.block_ops import reference_propagate


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("is_symmetric", [False, True])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("width", [3, 130])
def test_a_step_is_that_of_torch(few_nodes, device, width, is_weighted, is_symmetric, dtype):
    crow, column = few_nodes.pattern.crow.long().to(device), few_nodes.pattern.column.int().to(device)
    torch.manual_seed(0)
    x = torch.randn(8, width, device=device).to(dtype)
    weight = torch.rand(len(column), device=device) + 0.5 if is_weighted else None
    roots = torch.rand(8, device=device) if is_symmetric else None
    y, expected = torch.empty_like(x), torch.empty_like(x)
    propagate(crow, column, weight, roots, x, y)
    reference_propagate(crow, column, weight, roots, x, expected)
    torch.testing.assert_close(y, expected, rtol=1e-5 if dtype == torch.float32 else 1e-3, atol=1e-5)
