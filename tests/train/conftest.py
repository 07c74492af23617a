"""What the trainer's tests share."""

from __future__ import annotations

import importlib.util

# The comparison with PyTorch's autograd is for those who installed the `torch` extra; PyTorch is
# ten times the size of everything else together, so the suite does not ask for it.
collect_ignore = [] if importlib.util.find_spec("torch") else ["test_torch.py"]
