"""Prompts that are the same in every run, all different from the first word on, so that no cache helps.

Knows no tokenizer: a word here is about one token of an English byte-pair vocabulary.
"""

from __future__ import annotations

import random

__all__ = ["make_prompt"]

_WORDS = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name president team minute idea
kid body information back parent face others level office door health person art war history party result
change morning reason research girl guy moment air teacher force education foot boy age policy music market
sense nation plan college interest death experience
"""


def make_prompt(index: int, num_words: int) -> str:
    """Prompt number ``index``: ``num_words`` common words in an order drawn from the index alone."""
    generator = random.Random(index)
    return " ".join(generator.choices(_WORDS.split(), k=num_words))
