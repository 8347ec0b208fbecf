import pytest

import turbospark
from tests.tiny.trunks import write_trunk


@pytest.fixture(scope="session")
def trunk(tmp_path_factory):
    """A loaded llama; tests copy nothing of it and leave it as it is."""
    return turbospark.load(write_trunk(tmp_path_factory.mktemp("trunk"), "llama"), "reference", slots=2, chunk=32)
