from bench.prompts import make_prompt


def test_a_prompt_depends_on_its_number_alone() -> None:
    assert make_prompt(7, 100) == make_prompt(7, 100)
    assert len(make_prompt(7, 100).split()) == 100


def test_prompts_differ_early() -> None:
    starts = {tuple(make_prompt(index, 100).split()[:6]) for index in range(1000)}
    assert len(starts) == 1000
