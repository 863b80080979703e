"""The body of /generate: shapes that are accepted, and refusals by name."""

import pytest

from asyncrl.inference.local_engine.generate_body import BodyLimits, GenerateBody, parse
from asyncrl.inference.local_engine.request import RequestRefused
from tests.support.local_models import VOCAB

FEW = {"max_new_tokens": 4}
LIMITS = BodyLimits(VOCAB, 100, 8, lambda text: [ord(letter) - 97 for letter in text])
WITHOUT_TEXT = BodyLimits(VOCAB, 100, 8, None)


def body(**fields: object) -> GenerateBody:
    return parse({"input_ids": [1, 2, 3], "sampling_params": FEW, **fields}, LIMITS)


def test_one_prompt_gives_one_request_and_no_list() -> None:
    parsed = body(rid="r", extra_key="1.0", return_logprob=True)
    (request,) = parsed.requests
    assert (request.rid, request.prompt, request.limit, request.logprob_start) == ("r", [1, 2, 3], 4, None)
    assert (parsed.is_list, parsed.stream, parsed.return_logprob) == (False, False, (True,))


def test_unknown_top_level_fields_are_ignored_and_an_extra_key_separates() -> None:
    keys = {body(foo=1, **extra).requests[0].extra_key for extra in ({}, {"extra_key": "a"}, {"cache_salt": "a"})}
    assert len(keys) == 3


def test_max_new_tokens_is_128_unless_said_otherwise() -> None:
    with pytest.raises(RequestRefused, match="131 tokens: 3 from the input and 128"):
        body(sampling_params=None)


def test_max_new_tokens_null_runs_to_the_end_of_the_context() -> None:
    assert body(sampling_params={"max_new_tokens": None}).requests[0].limit == 97


def test_a_batch_gives_a_list_and_spreads_what_is_given_once() -> None:
    parsed = parse(
        {
            "input_ids": [[1], [2, 3]],
            "rid": "b",
            "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 2}],
            "return_logprob": [True, False],
            "extra_key": ["1.0", "1.1"],
            "logprob_start_len": 0,
        },
        LIMITS,
    )
    assert parsed.is_list
    assert parsed.requests[0].extra_key != parsed.requests[1].extra_key
    assert [(r.rid, r.prompt, r.limit, r.logprob_start) for r in parsed.requests] == [
        ("b_0", [1], 1, 0),
        ("b_1", [2, 3], 2, None),
    ]


def test_n_samples_of_a_prompt_have_ids_and_seeds_of_their_own() -> None:
    parsed = body(rid="s", sampling_params={"n": 3, "sampling_seed": 2**63, "max_new_tokens": 4})
    assert parsed.is_list
    assert [request.rid for request in parsed.requests] == ["s_0", "s_1", "s_2"]
    seeds = [request.params.sampling_seed for request in parsed.requests]
    assert seeds[0] == 2**63
    assert len(set(seeds)) == 3


def test_text_is_tokenized_where_there_is_a_tokenizer() -> None:
    assert parse({"text": "abc", "sampling_params": {"max_new_tokens": 1}}, LIMITS).requests[0].prompt == [0, 1, 2]
    with pytest.raises(RequestRefused, match=r"tokenizer\.json"):
        parse({"text": "abc"}, WITHOUT_TEXT)


def test_a_stream_reports_at_its_own_interval_or_the_servers() -> None:
    assert body(stream=True).requests[0].stream_every == 8
    assert body(stream=True, sampling_params={**FEW, "stream_interval": 1}).requests[0].stream_every == 1
    assert body().requests[0].stream_every == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"input_ids": None}, "text or input_ids"),
        ({"text": "a"}, "not both"),
        ({"input_ids": []}, "non-empty"),
        ({"input_ids": [[]]}, "non-empty"),
        ({"input_ids": [[1], 2]}, "lists of integers"),
        ({"input_ids": "abc"}, "list of token ids"),
        ({"input_ids": [1, 2.0]}, "integers"),
        ({"input_ids": [True]}, "integers"),
        ({"input_ids": [1, VOCAB]}, r"input_ids\[1\] = 51 is outside the vocabulary"),
        ({"input_ids": [-1]}, "outside the vocabulary"),
        (
            {"input_ids": [1] * 100},
            r"The input \(100 tokens\) is longer than the model's context length \(100 tokens\)",
        ),
        ({"sampling_params": {"max_new_tokens": 98}}, "exceeds the model's maximum context length of 100"),
        ({"sampling_params": [{}, {}]}, "2 entries for 1 prompts"),
        ({"sampling_params": 3}, "must be Mapping"),
        ({"input_ids": [[1], [2]], "sampling_params": [{"n": 1}, {"n": 2}]}, "n must be the same"),
        ({"input_ids": [[1], [2]], "rid": ["a", "a"]}, "Duplicate"),
        ({"rid": ["a", "b"]}, "one per prompt"),
        ({"return_logprob": True, "logprob_start_len": 4}, "logprob_start_len"),
        ({"top_logprobs_num": 2}, "for scoring a prompt only: set max_new_tokens to 0"),
        ({"top_logprobs_num": VOCAB + 1}, r"top_logprobs_num must be in \[0, 51\]"),
        ({"top_logprobs_num": True}, r"top_logprobs_num must be in"),
        ({"image_data": "x"}, "image_data"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, object], said: str) -> None:
    with pytest.raises(RequestRefused, match=said) as caught:
        body(**fields)
    assert (caught.value.status, caught.value.bare) == (400, False)


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(RequestRefused, match="tokenizer"):
        parse({"input_ids": [1], "sampling_params": {"stop": "x", "max_new_tokens": 4}}, WITHOUT_TEXT)


def test_a_body_that_is_no_object_is_refused() -> None:
    with pytest.raises(RequestRefused, match="JSON object"):
        parse([1], LIMITS)
