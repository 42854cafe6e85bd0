"""One thread for all tests: threads that wait for a busy core make small tensors slow."""

import torch

torch.set_num_threads(1)
