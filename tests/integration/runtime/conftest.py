from __future__ import annotations

import pytest

from system.signing import SigningKey, make_key, read_key


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    """The key that signs models in these tests."""
    file = tmp_path_factory.mktemp("key") / "key.pem"
    make_key(file)
    return read_key(file)
