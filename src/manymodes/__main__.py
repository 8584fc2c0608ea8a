"""`python -m manymodes` is the command line."""

import sys

from manymodes.cli import main

sys.exit(main())
