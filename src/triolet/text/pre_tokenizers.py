r"""How each named byte-level BPE vocabulary cuts text into words before merging (``tokenizer.ggml.pre``).

The patterns are those of the models' own ``tokenizer.json`` files, in Oniguruma's syntax; where a model
splits in several steps, each step cuts what the one before left. Names follow the GGUF format.
``\s+$`` is written so that it takes linear time; it cuts the same.

This module knows neither vocabularies nor files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import tokenizers
from tokenizers import normalizers, pre_tokenizers

from triolet.errors import ModelFileError

__all__ = ["PRE_TOKENIZERS", "PreTokenizer", "pre_tokenizer"]


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """``has_ignore_merges``: a word that is in the vocabulary is one token whatever the merges say.

    ``has_bos``: the beginning-of-sequence token is put in where the file does not say.
    ``is_composed``: text is brought to Unicode's composed form (NFC) first.
    """

    patterns: tuple[str, ...]
    has_ignore_merges: bool = False
    has_bos: bool = False
    is_composed: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The splitter, ending in the byte-level alphabet."""
        splits = [
            pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated") for pattern in self.patterns
        ]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, byte_level])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.is_composed else None


def pre_tokenizer(name: str) -> PreTokenizer:
    """The splitter of that name; raises :class:`ModelFileError` that lists the known ones."""
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        raise ModelFileError(
            f"the file's pre-tokenizer (tokenizer.ggml.pre) is {name!r}, which is not known here; "
            f"known are {', '.join(sorted(PRE_TOKENIZERS))}; "
            "use the model's Hugging Face directory with its tokenizer.json instead"
        ) from None


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + "|" + _WORD + r"|\p{N}{1,3}|" + _REST
_QWEN2 = _CONTRACTIONS + "|" + _WORD + r"|\p{N}|" + _REST
_QWEN35 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    + r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED = _CONTRACTIONS + "|" + _WORD + r"|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = f"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*" + r"|\p{N}|" + _CASED_REST
_GPT4O = (
    f"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    + r"|\p{N}{1,3}|"
    + _CASED_REST
)

# DeepSeek's own list of cased letters, code point ranges of Unicode 11.
_CASED_LETTERS = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_MARKS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_IDEOGRAPHS = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED_LETTERS}]+",
    rf"\s?[{_MARKS}]+",
    r"(?<!\s)\s+$",
    _IDEOGRAPHS,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _IDEOGRAPHS, r"\p{N}")
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")

_DIGITS_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA_BPE = PreTokenizer((_LLAMA3,), has_ignore_merges=True, has_bos=True)
_QWEN = PreTokenizer((_QWEN2,), is_composed=True)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
        "deepseek-llm": PreTokenizer(_DEEPSEEK_LLM),
        "deepseek-r1-qwen": _QWEN,
        "deepseek-v3": PreTokenizer(_DEEPSEEK_V3),
        "default": PreTokenizer(_DEFAULT),
        "falcon": PreTokenizer(_FALCON),
        "falcon3": _LLAMA_BPE,
        "gpt-2": PreTokenizer((_GPT2,)),
        "gpt-4o": PreTokenizer((_GPT4O,)),
        "kormo": _QWEN,
        "llama-bpe": _LLAMA_BPE,
        "llama-v3": _LLAMA_BPE,
        "llama3": _LLAMA_BPE,
        "llama4": PreTokenizer((_GPT4O,)),
        "megrez": _QWEN,
        "minerva-7b": _DIGITS_GPT2,
        "pixtral": _LLAMA_BPE,
        "qwen2": _QWEN,
        "qwen35": PreTokenizer((_QWEN35,), is_composed=True),
        "seed-coder": PreTokenizer((_SEED,)),
        "smaug-bpe": PreTokenizer((_LLAMA3,)),
        "smollm": _DIGITS_GPT2,
        "starcoder": _DIGITS_GPT2,
        "tekken": PreTokenizer((_TEKKEN,), has_ignore_merges=True, has_bos=True),
    }
)
