"""What looks like a credential, within names and within text, and how it is masked."""

from __future__ import annotations

import re
from typing import Final

MASKED: Final = "(masked)"
CREDENTIAL_WORDS: Final = "key|token|secret|passw|credential|auth|jwt"  # within a name
USER_IN_URL: Final = re.compile(r"://[^/@\s]+@")
_NAMED: Final = re.compile(  # `token=...`, `"api_key": "..."`, `Authorization: Bearer ...`
    rf"""(?ix) ( \w* (?: {CREDENTIAL_WORDS} ) \w*
        ["']? \s* [=:] \s* (?: bearer \s+ )? ["']? ) [^\s"',;)\]}}]+"""
)
_BY_FORM: Final = re.compile(  # of well-known services, wherever they stand
    r"\b(hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abps]-|AKIA|eyJ)[\w.\-]{8,}"
)


def masked_text(text: str) -> str:
    """The text without what looks like a credential."""
    text = _NAMED.sub(rf"\1{MASKED}", text)
    text = USER_IN_URL.sub(f"://{MASKED}@", text)
    return _BY_FORM.sub(MASKED, text)
