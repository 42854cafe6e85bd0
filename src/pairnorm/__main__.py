"""``python -m pairnorm``: the same as the command ``pairnorm``."""

import sys

from pairnorm.cli import main

sys.exit(main())
