"""Strings of every kind that tokenizers get wrong, and small tokenizers trained on ordinary ones."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = (
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind: it's asleep.",
    "We'll see 12 ships, 345 boats and 67890 gulls; they've COME from AFAR, haven't they?",
    "def add(a: int, b: int) -> int:\n    return a + b\n\n\nprint(add(1, 2))\n",
    "Größe, façade, naïve, Ærøskøbing, Łódź; Привет, мир! Γειά σου Κόσμε. שלום עולם",
    "你好，世界。今天天气很好。 東京は大きいです。 안녕하세요 세계",
    "مرحبا بالعالم، كيف الحال؟ नमस्ते दुनिया สวัสดีชาวโลก",
    "\t\tif (x == 0) { return; }   // nothing    here\r\n",
    "😀 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 ❤️ 🇪🇺",
) * 4

_FIXED = (
    "", " ", "  ", "   a", "a   ", " a", "a ", "\n", "\r\n", "\n\n\n", "\t", "\x00", "\x7f", "\ufeff",
    "\u200d", "\u00a0", "\u3000", "a\u0301", "\u1e9b\u0323", "e\u0301\u0327", "ﬁ", "Å", "İ", "ß", "ſ",
    "\ufffd", "\ufffd" * 20, "'s", "it's", "IT'S", "it’s", "we'LL", "''", "1", "12", "123",
    "1234", "1,234.5e-6", "٣٤٥",
    "²³", "Ⅷ", "½", "0x1F", "a1b2", "snake_case", "camelCase", "ALLCAPS", "https://example.org/a?b=c#d",
    "<s>", "</s>", "<unk>", "<0x0A>", "<|im_start|>user\nhi<|im_end|>", "x<|endoftext|>y", "<|im_end|",
    "  <|im_end|>  ", "<|im_end|><|im_end|>", "😀", "👩‍👩‍👧‍👦", "👍🏽", "🏳️‍🌈", "🇪🇺🇫🇷", "❤️", "\U0010ffff",
    "𝒳𐍈", "▁", "▁a", "a▁b", "Ġ", "Ċ", "<｜begin▁of▁sentence｜>",
)  # fmt: skip

_POOLS = (
    string.ascii_letters + "   '",
    string.digits + ".,- ",
    string.punctuation + " ",
    " \t\n\r\u00a0\u3000\u2003",
    "äöüßéèñçøåœŁğş ÀÉ",
    "абвгдежзАБВ ",
    "你好世界今天天气很好東京はですのカタカナ한국어，。",
    "مرحبا بالعالم ١٢٣",
    "नमस्ते क्षि த மி ไทย ",
    "😀👍🏽👩\u200d👧❤\ufe0f🇪🇺🏳\ufe0f\u200d🌈",
)


def sample_texts(count: int = 3_200, *, specials: tuple[str, ...] = (), seed: int = 0) -> list[str]:
    """``count`` texts, the same each time; ``specials`` are strewn among some of them."""
    source = random.Random(seed)
    texts = [*_FIXED, *CORPUS[:8], *specials]
    makers = (_from_one_pool, _from_all_pools, _any_unicode, _whitespace_and_words, _code)
    while len(texts) < count:
        text = source.choice(makers)(source)
        if specials and source.random() < 0.2:
            cut = source.randint(0, len(text))
            text = text[:cut] + source.choice(specials) + text[cut:]
        texts.append(text)
    return texts[:count]


def _from_one_pool(source: random.Random) -> str:
    pool = source.choice(_POOLS)
    return "".join(source.choices(pool, k=source.randint(1, 30)))


def _from_all_pools(source: random.Random) -> str:
    return "".join(_from_one_pool(source) for _ in range(source.randint(2, 5)))


def _any_unicode(source: random.Random) -> str:
    points = (source.choice((0x80, 0x800, 0x3000, 0xFFFF, 0x110000)) for _ in range(source.randint(1, 20)))
    characters = (chr(source.randrange(limit)) for limit in points)
    return "".join("?" if "\ud800" <= character <= "\udfff" else character for character in characters)


def _whitespace_and_words(source: random.Random) -> str:
    words = " ".join(CORPUS).split()
    gaps = (" ", "  ", "\n", "\n\n", "\t", " \n ", "        ", "\r\n")
    return "".join(source.choice(words) + source.choice(gaps) for _ in range(source.randint(1, 12)))


def _code(source: random.Random) -> str:
    lines = (
        "for i in range(10):",
        "    x[i] += 1",
        "if (a && b) {",
        "}",
        "// done",
        "return a->b;",
        "'''doc'''",
    )
    return "\n".join(source.choices(lines, k=source.randint(1, 6)))


def train_byte_level(
    pre_tokenizer: pre_tokenizers.PreTokenizer,
    *,
    normalizer: normalizers.Normalizer | None = None,
    specials: tuple[str, ...] = (),
    vocab_size: int = 700,
    ignore_merges: bool = False,
) -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer as Hugging Face's ``tokenizer.json`` files describe one."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False) for t in specials])
    return tokenizer


def byte_level_metadata(tokenizer: tokenizers.Tokenizer, pre: str) -> dict[str, Any]:
    """What a GGUF file would hold for a byte-level BPE tokenizer."""
    model = json.loads(tokenizer.to_str())["model"]
    added = tokenizer.get_added_tokens_decoder()
    vocabulary = sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [token for token, _ in vocabulary],
        "tokenizer.ggml.token_type": [3 if i in added else 1 for _, i in vocabulary],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
    }


def chunks_of(items: list[int], source: random.Random) -> Iterator[list[int]]:
    """``items`` cut at random."""
    position = 0
    while position < len(items):
        size = source.randint(1, 5)
        yield items[position : position + size]
        position += size
