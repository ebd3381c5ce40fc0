"""`python -m hmas_lab`: the command `hmas-lab`."""

import sys

from hmas_lab.cli import main

sys.exit(main())
