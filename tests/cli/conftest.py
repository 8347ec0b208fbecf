import pytest

from tests.tiny.alphabet import write_alphabet
from turbospark.environment import DRAFTS
from turbospark.runtime import LanguageModel


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch, tmp_path):
    for name in DRAFTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TURBOSPARK_HOME", str(tmp_path / "home"))


@pytest.fixture
def model(tmp_path):
    """The path of a model that says the alphabet."""
    return str(write_alphabet(tmp_path / "alphabet.gguf"))


@pytest.fixture
def prompts(monkeypatch):
    """What the model was given, in order."""
    given, submit = [], LanguageModel.submit

    def spy(self, prompt, params=None):
        given.append(prompt)
        return submit(self, prompt, params)

    monkeypatch.setattr(LanguageModel, "submit", spy)
    return given
