"""The one error family: what went wrong by name, in words with both numbers, and what to do about it."""


class TurbosparkError(Exception):
    """Raised for every bad input: a stable snake_case `code`, a `message` that names the thing, a `hint` that helps."""

    def __init__(self, code: str, message: str, hint: str = ""):
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]" + (f"\n  hint: {self.hint}" if self.hint else "")
