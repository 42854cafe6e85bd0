import numpy as np
import pytest
import torch

from pairnorm.nn.ops.hop import cuda as kernels


@pytest.mark.parametrize("places", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 5, 130])
def test_a_step_averages_over_a_node_and_its_neighbours(places, dtype, width, device):
    generator = np.random.default_rng(0)
    degrees = generator.integers(0, 20, 13)
    crow = torch.from_numpy(np.concatenate([[0], degrees.cumsum()])).to(places)
    column = torch.from_numpy(generator.integers(0, 13, int(crow[-1]))).int()
    x = torch.randn(13, width).to(dtype)
    expected = torch.stack(
        [
            torch.cat([x[row : row + 1], x[column[crow[row] : crow[row + 1]].long()]]).double().mean(0)
            for row in range(13)
        ]
    )
    y = torch.empty_like(x, device=device)
    kernels.hop(x.to(device), crow.to(device), column.to(device), y)
    tolerance = 1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
    torch.testing.assert_close(y.cpu().double(), expected, rtol=tolerance, atol=tolerance)
