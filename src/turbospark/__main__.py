"""`python -m turbospark`."""

from __future__ import annotations

import sys

from turbospark.cli.main import main

sys.exit(main())
