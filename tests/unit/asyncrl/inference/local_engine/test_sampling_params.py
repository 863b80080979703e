"""Sampling parameters: SGLang's defaults and refusals."""

import pytest

from asyncrl.inference.local_engine.request import RequestRefused
from asyncrl.inference.local_engine.sampling_params import SamplingParams


def test_defaults_are_those_of_sglang() -> None:
    params = SamplingParams.parse({})
    assert (params.max_new_tokens, params.temperature, params.top_p, params.top_k, params.n) == (128, 1.0, 1.0, 0, 1)
    assert not params.greedy
    assert not params.filters


def test_null_means_the_default_and_for_max_new_tokens_no_limit() -> None:
    params = SamplingParams.parse({"temperature": None, "top_k": None, "n": None, "max_new_tokens": None})
    assert (params.temperature, params.top_k, params.n, params.max_new_tokens) == (1.0, 0, 1, None)


def test_all_that_is_implemented_is_read() -> None:
    params = SamplingParams.parse(
        {
            "max_new_tokens": 5,
            "min_new_tokens": 2,
            "temperature": 0.0,
            "top_p": 0.9,
            "top_k": 7,
            "min_p": 0.1,
            "stop": "end",
            "stop_token_ids": [3, 4, None],
            "ignore_eos": True,
            "n": 2,
            "sampling_seed": 11,
            "skip_special_tokens": False,
            "no_stop_trim": True,
            "stream_interval": 3,
            "spaces_between_special_tokens": True,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "logit_bias": None,
        }
    )
    expected = SamplingParams(5, 2, 0.0, 0.9, 7, 0.1, ("end",), frozenset({3, 4}), True, 2, 11, False, True, 3)
    assert params == expected
    assert params.greedy
    assert not params.filters


def test_an_unknown_parameter_is_refused_in_sglangs_bare_shape() -> None:
    with pytest.raises(RequestRefused, match="'foo'") as caught:
        SamplingParams.parse({"foo": 1})
    assert (caught.value.status, caught.value.bare) == (400, True)


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": 2}, "min_p"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"max_new_tokens": 3, "min_new_tokens": 4}, "min_new_tokens"),
        ({"n": 0}, "n must"),
        ({"stop": [""]}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stop_token_ids": 3}, "stop_token_ids"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"sampling_seed": 0.5}, "sampling_seed"),
        ({"regex": "a+"}, "regex"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"3": 1.0}}, "logit_bias"),
    ],
)
def test_a_wrong_value_is_refused_by_name(raw: dict[str, object], named: str) -> None:
    with pytest.raises(RequestRefused, match=named) as caught:
        SamplingParams.parse(raw)
    assert not caught.value.bare
