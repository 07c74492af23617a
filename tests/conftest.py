"""How the suite is shared out among processes (`pytest -n auto`), what hypothesis may do, and which
signals programs get that tests start."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# A busy machine takes long over any example. Cases are always the same unless more are asked for.
settings.register_profile(
    "suite",
    deadline=None,
    derandomize="P2PNODE_FUZZ" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")

# Under nohup or in the background the suite ignores these. Programs that it starts would inherit
# that, but not a handler.
for name in ("SIGINT", "SIGHUP"):
    number = getattr(signal, name, None)  # Windows has no SIGHUP
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

INTEGRATION = Path(__file__).parent / "integration"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first."""
    items.sort(key=lambda item: not item.path.is_relative_to(INTEGRATION))


class BesideTheOthers(LoadScopeScheduling):
    """A file's tests stay together. Integration tests start several processes each: they run one
    after another, in one worker, beside the others; campaigns as many at a time as was asked for.
    (xdist's own groups do nothing with pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        if self.config.option.markexpr == "campaign":
            return nodeid
        file = nodeid.split("::", maxsplit=1)[0]
        return "integration" if file.startswith("tests/integration/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> BesideTheOthers:
    config.option.loadscopereorder = False
    return BesideTheOthers(config, log)
