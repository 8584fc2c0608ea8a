"""Real data where it lies, and a cache of decoded images that lasts from one test run to the next."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def image_cache(request):
    """Tests neither read nor fill the person's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANYMODES_CACHE", str(request.config.cache.mkdir("manymodes")))
        yield


def _shared(path):
    if not (SHARED / path).exists():
        pytest.skip(f"real data absent: {SHARED / path}")
    return SHARED


@pytest.fixture(scope="session")
def cifar_dir():
    return _shared("cifar100/train-00000-of-00001.parquet")


@pytest.fixture(scope="session")
def pacs_dir():
    return _shared("pacs/pacs_32.npz")
