"""`python -m fissile`: the command line."""

import sys

from fissile.cli import main

sys.exit(main())
