"""This folder's modules import by name: `select.` is a module of Python itself."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
