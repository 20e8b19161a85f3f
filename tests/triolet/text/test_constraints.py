"""Masks and states of constrained sequences, against a second way of having them."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress

import llguidance
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.triolet.text.drive import Driver, token_ids_of

from triolet.sampling_params import StructuredOutputs
from triolet.text.constraints import GrammarConstraints, new_matcher
from triolet.text.grammar import GrammarCompiler, write_grammar
from triolet.text.grammar_tokenizer import grammar_tokenizer
from triolet.text.tokenizer import Tokenizer

pytestmark = pytest.mark.model

SPECS = (
    StructuredOutputs(json={"type": "object", "properties": {"alpha": {"type": "string", "maxLength": 9}}}),
    StructuredOutputs(json_object=True),
    StructuredOutputs(regex="[a-z ]{1,30}(foo|bar)?"),
    StructuredOutputs(choice=["Hello wonderful world", "Hello you", "no"]),
    StructuredOutputs(grammar='start: "Hello " x\nx: "abc def" | "abd" x'),
    StructuredOutputs(
        structural_tag={
            "triggers": ["<f="],
            "structures": [{"begin": "<f=a>", "schema": {"type": "object"}, "end": "</f>"}],
        }
    ),
)


@given(st.sampled_from(SPECS), st.integers(0, 2**32), st.lists(st.integers(0, 4), min_size=1, max_size=12))
@settings(max_examples=60)
def test_a_mask_depends_on_the_output_alone(spec: StructuredOutputs, seed: int, guesses: list[int]) -> None:
    """Not on guesses taken back, nor on having been started anew with what was put out before."""
    driver = shared_driver()
    constraints, end = driver.constraints, driver.tokenizer.eos_token_ids
    generator, output, grammar = random.Random(seed), list[int](), write_grammar(spec)
    constraints.start(0, grammar, output)
    for num_guesses in guesses:
        mask = driver.mask()
        num_accepted = 0
        while num_accepted < num_guesses and (allowed := driver.allowed()):
            guess = generator.choice(allowed)
            assert constraints.accept(0, guess)
            num_accepted += 1
            if guess in end:
                break
        constraints.rollback(0, num_accepted)
        assert np.array_equal(driver.mask(), mask)
        constraints.start(1, grammar, output)
        assert np.array_equal(driver.mask(1), mask)
        output.append(generator.choice(token_ids_of(mask)))
        assert constraints.accept(0, output[-1])
        if output[-1] in end:
            break


@given(st.sampled_from(SPECS), st.integers(0, 2**32))
@settings(max_examples=20)
def test_single_tokens_are_allowed_as_the_mask_says(spec: StructuredOutputs, seed: int) -> None:
    """Above all those that begin a token that is on offer: of forced text, only one spelling is."""
    driver, generator = shared_driver(), random.Random(seed)
    constraints, tokenizer = driver.constraints, driver.tokenizer
    constraints.start(0, write_grammar(spec), ())
    for _ in range(12):
        allowed = driver.allowed()
        chosen = generator.choice(allowed)
        text = tokenizer.token_bytes((chosen,)).decode(errors="ignore")
        asked = {*generator.sample(allowed, min(20, len(allowed))), *range(8), *tokenizer.eos_token_ids}
        asked |= {generator.randrange(tokenizer.vocab_size) for _ in range(20)}
        for end in range(1, len(text)):
            asked |= set(tokenizer.encode(text[:end], add_special_tokens=False)[:1])
        for token in asked:
            expected = token if token in allowed else None
            found = constraints.first_allowed(0, [token])
            assert found == expected or allowed == [found]
        among = sorted(asked)
        assert constraints.are_allowed(0, among) == [token in allowed for token in among]
        without_end = [token for token in among if token not in tokenizer.eos_token_ids]
        assert constraints.are_allowed(0, without_end) == [token in allowed for token in without_end]
        assert driver.allowed() == allowed
        if constraints.accept(0, chosen) and chosen in tokenizer.eos_token_ids:
            assert constraints.first_allowed(0, [chosen]) == chosen
            assert constraints.first_allowed(0, [40]) is None
            assert constraints.first_allowed(0, [40, chosen, 40]) == chosen
            assert constraints.are_allowed(0, [40, chosen, 40]) == [False, True, False]
            break


def test_forced_text_is_said_without_being_asked_about() -> None:
    driver = shared_driver()
    driver.constraints.start(0, write_grammar(StructuredOutputs(choice=["yes indeed"])), ())
    (forced,) = driver.allowed()
    assert driver.constraints.first_allowed(0, [40, 41]) == forced
    assert driver.constraints.first_allowed(0, []) == forced


@given(st.sampled_from(SPECS), st.integers(0, 2**32))
@settings(max_examples=40)
def test_what_the_mask_forbids_is_not_accepted(spec: StructuredOutputs, seed: int) -> None:
    driver, generator = shared_driver(), random.Random(seed)
    driver.constraints.start(0, write_grammar(spec), ())
    for _ in range(10):
        allowed = driver.allowed()
        forbidden = generator.randrange(driver.tokenizer.vocab_size)
        # A token that spells forced text otherwise than the tokenizer would is no error, but not on offer.
        if forbidden not in allowed and driver.constraints.accept(0, forbidden):
            driver.constraints.rollback(0, 1)
        assert driver.allowed() == allowed
        token_id = generator.choice(allowed)
        assert driver.constraints.accept(0, token_id)
        if token_id in driver.tokenizer.eos_token_ids:
            break


def test_the_end_is_allowed_exactly_where_the_grammar_may_end(smollm2_driver: Driver) -> None:
    driver, (end,) = smollm2_driver, smollm2_driver.tokenizer.eos_token_ids
    (letter,) = driver.tokenizer.encode("a", add_special_tokens=False)
    driver.constraints.start(0, write_grammar(StructuredOutputs(regex="a{2,3}")), ())
    seen = []
    for _ in range(3):
        seen.append(end in driver.allowed())
        assert driver.constraints.accept(0, letter)
    assert seen == [False, False, True]
    assert driver.allowed() == [end]
    assert not driver.constraints.accept(0, letter)
    assert driver.constraints.accept(0, end)
    assert driver.allowed() == [end]
    assert not driver.constraints.accept(0, end)
    driver.constraints.rollback(0, 2)
    assert letter in driver.allowed()


def test_an_output_that_the_grammar_does_not_allow_cannot_be_replayed(smollm2_driver: Driver) -> None:
    with pytest.raises(ValueError, match="does not allow token 5 at position 0"):
        smollm2_driver.constraints.start(0, write_grammar(StructuredOutputs(regex="a")), (5,))


def test_a_grammar_that_cannot_be_read_is_an_error(smollm2_driver: Driver) -> None:
    with pytest.raises(ValueError, match="unclosed group"):
        smollm2_driver.constraints.start(0, "start: /(/", ())


def test_a_grammar_that_grows_too_large_with_a_token_says_so_and_may_be_rolled_back(
    smollm2_driver: Driver,
) -> None:
    constraints = smollm2_driver.constraints
    (letter,) = smollm2_driver.tokenizer.encode("a", add_special_tokens=False)
    constraints.start(0, write_grammar(StructuredOutputs(regex="(a{1000}){1000}")), ())
    smollm2_driver.mask()
    with pytest.raises(ValueError, match="the grammar cannot go on: lexer error"):
        constraints.accept(0, letter)
    constraints.rollback(0, 1)


def test_one_row_at_its_limits_leaves_the_others_alone(smollm2_driver: Driver) -> None:
    driver = smollm2_driver
    driver.constraints.start(0, write_grammar(StructuredOutputs(json_object=True)), ())
    driver.constraints.start(1, write_grammar(StructuredOutputs(regex="((a{1000}){1000}){1000}")), ())
    tokens = driver.tokenizer.encode("aaaa" * 100, add_special_tokens=False)
    first, second = np.zeros((2, len(driver.mask())), np.int32)

    def follow() -> None:
        for token_id in tokens:
            driver.constraints.fill_mask(1, second)
            with suppress(ValueError):  # which the next mask says again
                driver.constraints.accept(1, token_id)

    with pytest.raises(ValueError, match="cannot go on"):
        follow()
    driver.constraints.fill_mask(0, first)
    assert np.array_equal(first, driver.mask(0))


def test_the_tokenizer_is_made_when_the_first_grammar_comes(smollm2: Tokenizer) -> None:
    num_loads = 0

    def load() -> llguidance.LLTokenizer:
        nonlocal num_loads
        num_loads += 1
        return grammar_tokenizer(smollm2, smollm2.vocab_size)

    constraints = GrammarConstraints(load)
    constraints.end(3)
    assert num_loads == 0
    constraints.prepare("start: /a+/")
    constraints.start(0, "start: /a+/", ())
    constraints.prepare("start: /b+/")
    constraints.start(1, "start: /b+/", ())
    assert num_loads == 1
    constraints.close()


def test_warmed_up_it_loads_nothing_for_the_first_grammar(smollm2: Tokenizer) -> None:
    loads: list[int] = []
    has_loaded = threading.Event()

    def load() -> llguidance.LLTokenizer:
        loads.append(threading.get_ident())
        has_loaded.set()
        return grammar_tokenizer(smollm2, smollm2.vocab_size)

    constraints = GrammarConstraints(load)
    constraints.warm_up()
    assert has_loaded.wait(60)
    constraints.start(0, "start: /a+/", ())
    assert len(loads) == 1
    assert loads[0] != threading.get_ident()
    constraints.close()


def test_what_is_prepared_needs_no_compiling_later(smollm2: Tokenizer) -> None:
    loads: list[int] = []

    def load() -> llguidance.LLTokenizer:
        loads.append(threading.get_ident())
        return grammar_tokenizer(smollm2, smollm2.vocab_size)

    constraints = GrammarConstraints(load)
    constraints.prepare("start: /a+/")
    constraints.prepare("start: /(/")  # wrong, which only start says
    while not loads:
        time.sleep(0)
    assert loads[0] != threading.get_ident()
    constraints.start(0, "start: /a+/", ())
    assert len(loads) == 1
    constraints.close()


def test_a_matcher_is_new(smollm2: Tokenizer, smollm2_compiler: GrammarCompiler) -> None:
    grammar = smollm2_compiler.compile(StructuredOutputs(regex="ab"))
    matcher = new_matcher(grammar_tokenizer(smollm2, smollm2.vocab_size), grammar)
    assert not matcher.is_accepting()


DRIVERS: list[Driver] = []


@pytest.fixture(autouse=True)
def keep_driver(smollm2_driver: Driver) -> None:
    """Hypothesis calls a test often and a fixture once."""
    DRIVERS[:] = [smollm2_driver]


def shared_driver() -> Driver:
    return DRIVERS[0]


def test_what_was_prepared_is_not_compiled_again_when_it_is_needed(
    smollm2: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, compiled = grammar_tokenizer(smollm2, smollm2.vocab_size), list[str]()

    def noted(tokenizer: llguidance.LLTokenizer, grammar: str) -> llguidance.LLMatcher:
        compiled.append(grammar)
        return new_matcher(tokenizer, grammar)

    monkeypatch.setattr("triolet.text.constraints.new_matcher", noted)
    constraints = GrammarConstraints(lambda: known)
    grammars = [write_grammar(StructuredOutputs(regex=f"{number}x")) for number in range(70)]
    for grammar in grammars:
        constraints.prepare(grammar)
    constraints._errands.add(lambda: None)
    thread = constraints._errands._thread
    assert thread is not None
    thread.join()
    assert sorted(compiled) == sorted(grammars)
    for grammar in grammars:
        constraints.start(0, grammar, ())
        constraints.release(grammar)
    assert len(compiled) == len(grammars)
    constraints.close()
