from __future__ import annotations

import pytest

from triolet.frontend.progress_bar import ProgressBar
from triolet.request import RequestOutput, RequestTimings


def output(num_output_tokens: int) -> RequestOutput:
    return RequestOutput(
        request_id="1",
        prompt=None,
        prompt_token_ids=(1,),
        outputs=[],
        is_finished=True,
        seed=0,
        num_output_tokens=num_output_tokens,
        timings=RequestTimings(arrived=0.0),
    )


def test_it_counts_requests_and_goes_to_the_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with ProgressBar(3, is_shown=True) as bar:
        bar.advance([output(5), output(7)])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "2/3" in captured.err


@pytest.mark.parametrize("is_shown", [True, False])
def test_it_is_silent_where_there_is_no_terminal_or_it_is_not_wanted(
    is_shown: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    with ProgressBar(1, is_shown=is_shown) as bar:
        bar.advance([output(5)])
    assert capfd.readouterr() == ("", "")
