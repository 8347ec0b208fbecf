import pytest


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Where installs of the test lie."""
    folder = tmp_path / "home"
    monkeypatch.setenv("TURBOSPARK_HOME", str(folder))
    return folder
