"""Figures that change while a problem lasts are marked in its sentence, so that it is recognized again.

f"the disk of /data fills up{now('91 %')}: free space"
"the disk of /data fills up (now 91 %): free space"
"""

from __future__ import annotations

import re

_FIGURES = re.compile(r" \(now [^()]*\)")


def now(figures: str) -> str:
    """To go after the words of a sentence; without parentheses."""
    return f" (now {figures})"


def without_figures(sentence: str) -> str:
    """The sentence without its changing figures."""
    return _FIGURES.sub("", sentence)
