"""SmolLM2 from its GGUF file: against ``transformers`` in float32, and the fast mode against float32."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers
from bench.perplexity import TEXT, load, perplexity
from tests.paged import PagedModel

from triolet.models.checkpoint import open_checkpoint
from triolet.models.decoder import Decoder
from triolet.models.loader import load_model
from triolet.models.source import ModelFiles, local_files
from triolet.text.tokenizer import load_tokenizer
from triolet_kernels.ops import select_ops
from triolet_kernels.preferred_dtype import preferred_dtype

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("one_thread"),
]

CPU = torch.device("cpu")
NUM_TOKENS = 64
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at a temperature of",
    "The three primary colours are",
    "Dear Sir or Madam,\n\nI am writing to",
    "To make a good cup of tea, first",
    "1, 1, 2, 3, 5, 8, 13,",
    "import numpy as np\n\nx = np.array(",
    "The largest planet in the solar system",
    "Photosynthesis is the process by which",
    "SELECT name, age FROM users WHERE",
    "In 1969, two men",
    "Roses are red,",
    "The difference between a virus and a bacterium is",
    "Je m'appelle Marie et j'habite à",
    "Question: What is 12 times 12?\nAnswer:",
    "The old clock on the wall struck midnight when",
    "# Shopping list\n\n- milk\n- bread\n-",
    "<|im_start|>user\nName a river.<|im_end|>\n<|im_start|>assistant\n",
)


@dataclass(frozen=True, slots=True)
class Pair:
    """The same weights here and in ``transformers``, and the tokens of :data:`PROMPTS`."""

    ours: Decoder
    theirs: Any
    prompts: list[list[int]]


def load_theirs(files: ModelFiles) -> Any:
    """The model as ``transformers`` reads it, which makes the same list of names for every module."""
    auto_class: Any = transformers.AutoModelForCausalLM
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))
        return auto_class.from_pretrained(
            files.path.parent, gguf_file=files.path.name, dtype=torch.float32, attn_implementation="eager"
        ).eval()


@pytest.fixture(scope="module")
def pair(smollm2_path: Path) -> Pair:
    files = local_files(smollm2_path)
    ops = select_ops(CPU, is_reference=True)
    with open_checkpoint(files) as checkpoint:
        ours = load_model(checkpoint, ops, dtype=torch.float32, device=CPU)
    tokenizer = load_tokenizer(files)
    return Pair(ours, load_theirs(files), [tokenizer.encode(prompt) for prompt in PROMPTS])


def test_logits_at_every_position(pair: Pair) -> None:
    token_ids = [token for prompt in pair.prompts for token in prompt][:128]
    actual = PagedModel(pair.ours).step({0: token_ids})[0]
    with torch.inference_mode():
        expected = pair.theirs(torch.tensor([token_ids])).logits[0]
    assert ((actual - expected).abs().max() / expected.abs().max()).item() <= 1e-4


def continue_greedily(model: Decoder, prompts: list[list[int]]) -> list[list[int]]:
    paged = PagedModel(model, block_size=16, num_blocks=len(prompts) * 8)
    tokens = dict(enumerate(prompts))
    outputs: list[list[int]] = [[] for _ in prompts]
    for _ in range(NUM_TOKENS):
        chosen = paged.step_last(tokens).argmax(dim=-1).tolist()
        tokens = {sequence: [token] for sequence, token in enumerate(chosen)}
        for output, token in zip(outputs, chosen, strict=True):
            output.append(token)
    return outputs


def test_greedy_continuations(pair: Pair) -> None:
    """One pass over our whole texts tells: wherever ``transformers`` had chosen another token first, its
    most likely token there would differ from ours. Padding to the right changes nothing before it.
    """
    ours = continue_greedily(pair.ours, pair.prompts)
    texts = [prompt + output for prompt, output in zip(pair.prompts, ours, strict=True)]
    width = max(map(len, texts))
    padded = torch.tensor([text + [0] * (width - len(text)) for text in texts])
    with torch.inference_mode():
        theirs = pair.theirs(padded).logits.argmax(dim=-1)
    for row, prompt, output in zip(theirs, pair.prompts, ours, strict=True):
        start = len(prompt) - 1
        assert row[start : start + NUM_TOKENS].tolist() == output


def test_the_fast_mode_is_within_one_percent_of_float32(pair: Pair, smollm2_path: Path) -> None:
    files, dtype = local_files(smollm2_path), preferred_dtype(CPU)
    token_ids = load_tokenizer(files).encode(TEXT.read_text(encoding="utf-8"))[:2048]
    fast = load(files, is_reference=False, dtype=dtype, device=CPU)
    expected = perplexity(pair.ours, token_ids, context=512, dtype=torch.float32, device=CPU)
    actual = perplexity(fast, token_ids, context=512, dtype=dtype, device=CPU)
    assert actual / expected == pytest.approx(1.0, abs=0.01)
