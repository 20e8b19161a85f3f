"""Conversations of the kinds that people have with a model, the same in every run of one Python version.

**chat**: a question. **rewrite**: a text is to be put in other words or made shorter. **code**: a function is
to be changed and given back whole. **json**: what a text says is to be given as JSON. **turns**: a chat that
goes on, in which earlier answers are quoted back. This module knows no tokenizer and no engine.
"""

from __future__ import annotations

import fnmatch
import heapq
import inspect
import random
import shlex
import textwrap
from collections.abc import Callable
from typing import Any

__all__ = ["KINDS", "Conversation", "make_conversation"]

Conversation = list[dict[str, str]]

_QUESTIONS = """
Why is the sky blue?|How do I boil an egg?|What is the difference between a virus and a bacterium?
Give me three ideas for a birthday present for my father.|Explain compound interest to a child.
Write a short poem about the sea.|How does a refrigerator work?|What should I see in Lisbon in two days?
Tell me a story about a lighthouse keeper.|How can I sleep better?|What is a black hole?
Write an e-mail in which I ask my landlord to repair the heating.|What is photosynthesis?
How do I learn to play the guitar?|Who was Marie Curie?|List the planets and one fact about each.
What are the pros and cons of working from home?|How do vaccines work?|Plan a week of simple dinners.
What is the best way to learn a language?|Explain what an operating system does.|How are mountains made?
Give me tips for a job interview.|What is inflation?|Describe how bread is baked.|What causes earthquakes?
Write a short speech for a wedding.|How do bees make honey?|What is machine learning?
Compare tea and coffee.|How do I start running?|Why do leaves change their colour in autumn?
"""
_PASSAGES = """
The harbour of the town was built in 1883, when the railway had reached the coast. Ships from the north
brought timber and fish, and took grain and wool with them. After the storm of 1921 the outer wall had to
be raised by two metres, which took four years and cost more than the town earned in ten. Today the
harbour is used by fishing boats and by visitors.
|
Honey bees find their way by the sun. A bee that has found flowers tells the others in a dance: the angle
of the dance is the angle between the flowers and the sun, and how long it lasts tells how far away they
are. On cloudy days they see the pattern of polarised light in the sky. Inside the dark hive the others
follow the dance with their antennae.
|
The committee met on Tuesday to talk about the new library. Mrs Adams said that the old building was too
small and that the roof leaked. Mr Baker replied that a new building would cost three million, which the
town did not have. It was agreed that a firm of architects would be asked what it would cost to repair
the roof and to add a second floor.
|
Concrete gets hard because cement and water react with each other, not because it dries. The reaction
goes on for years, but after four weeks most of the strength is there. If concrete dries too fast, the
reaction stops and it stays weak; so fresh concrete is kept wet for some days. In cold weather the
reaction is slow, and below freezing point it stops.
|
Our train left the station at six in the morning. Fog lay over the fields, and we saw nothing but the
tops of trees. At nine the sun came through, and suddenly there were mountains on both sides. In the
small town at the end of the line a man was waiting for us with two horses. He said that the road to the
lake was closed, and that we should take the old path.
|
A contract must be kept by both sides. If the seller does not deliver within thirty days, the buyer may
ask for the money back. If the buyer does not pay within fourteen days, the seller may keep the goods
until the money has come. Either side may end the contract with a notice of three months. The notice has
to be given in writing.
"""
_TASKS = (
    "Correct the spelling and the grammar of this text, and change nothing else:",
    "Summarise this text in two sentences:",
    "Rewrite this text in simple words:",
    "Rewrite this text so that it is more formal:",
)
_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    heapq.nsmallest, textwrap.indent, shlex.join, fnmatch.filter, textwrap.dedent, heapq.merge, shlex.split,
    heapq.nlargest,
)  # fmt: skip
_CHANGES = (
    "Add type hints to this function. Give the whole function back:",
    "Rename the first parameter of this function to `first`. Give the whole function back:",
    "Remove the docstring of this function. Give the whole function back:",
    "Make this function a method of a class `Tools`. Give the whole class back:",
)
_NAMES = [
    "Anna Berg",
    "Tom Okoye",
    "Maria Silva",
    "John Smith",
    "Wei Zhang",
    "Fatima Khan",
    "Lars Olsen",
    "Ruth Levy",
]
_TOWNS = ["Oslo", "Lagos", "Lisbon", "Leeds", "Nanjing", "Lahore", "Bergen", "Haifa"]
_JOBS = ["nurse", "teacher", "carpenter", "driver", "engineer", "cook", "painter", "lawyer"]
_FOLLOW_UPS = (
    "Say it again in fewer words.",
    "Now give me the same as a list of points.",
    "Translate your answer into simple English, and keep all the facts.",
)
_MAX_CODE = 1500
"""Characters of a function: the first ones of a longer one."""


def _passages() -> list[str]:
    return [" ".join(passage.split()) for passage in _PASSAGES.split("|")]


def _chat(generator: random.Random, index: int) -> Conversation:
    questions = [question for line in _QUESTIONS.strip().splitlines() for question in line.split("|")]
    return [_user(questions[index % len(questions)])]


def _rewrite(generator: random.Random, index: int) -> Conversation:
    passages = generator.sample(_passages(), 2)
    return [_user("\n\n".join((_TASKS[index % len(_TASKS)], *passages)))]


def _code(generator: random.Random, index: int) -> Conversation:
    code = inspect.getsource(generator.choice(_FUNCTIONS))[:_MAX_CODE]
    return [_user(f"{_CHANGES[index % len(_CHANGES)]}\n\n```python\n{code}```")]


def _json(generator: random.Random, index: int) -> Conversation:
    people = [
        f"{name}, who is {generator.randint(20, 70)}, lives in {generator.choice(_TOWNS)} and works as a "
        f"{generator.choice(_JOBS)}."
        for name in generator.sample(_NAMES, 5)
    ]
    task = "Give the people in this text as a JSON array of objects with the keys name, age, town and job:"
    return [_user(f"{task}\n\n{' '.join(people)}")]


def _turns(generator: random.Random, index: int) -> Conversation:
    passage = generator.choice(_passages())
    return [
        _user("Tell me something interesting."),
        {"role": "assistant", "content": passage},
        _user(_FOLLOW_UPS[index % len(_FOLLOW_UPS)]),
    ]


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


KINDS: dict[str, Callable[[random.Random, int], Conversation]] = {
    "chat": _chat, "rewrite": _rewrite, "code": _code, "json": _json, "turns": _turns,
}  # fmt: skip


def make_conversation(kind: str, index: int) -> Conversation:
    """Conversation number ``index`` of one of ``KINDS``, which ends with what the user says."""
    return KINDS[kind](random.Random(index), index)
