"""The kernels in numba are called as they are, and held against the plain torch forms."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("numba") else ["test_*.py"]
