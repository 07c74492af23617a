"""`python -m signaling`. May import: cli."""

import sys

from signaling.cli import main

sys.exit(main())
