"""Text at the edge: encoding, decoding, chat templates."""

from turbospark.tokenizer.load import load_tokenizer
from turbospark.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer", "load_tokenizer"]
