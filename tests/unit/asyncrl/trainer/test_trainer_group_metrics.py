"""What a step tells of its groups: lag, age, and the lengths of those that were trained on and of those that left."""

from asyncrl.trainer.group_metrics import answers, consumed, left
from buffer.answers import Entry, LeftGroup


def gone(ordinal, lag, *sampled, outcome="waiting", source="toy", reason="stale"):
    return LeftGroup(ordinal, 1, reason, outcome, lag, tuple(n + 5 for n in sampled), sampled, source)


def entry(ordinal, lag, *sampled, source="toy"):
    sampled = sampled or (2,)
    return Entry(ordinal, 1, "key", 100, "hash", lag, tuple(n + 5 for n in sampled), sampled, (1.0,), source, 3.0)


def test_the_histogram_of_lags_counts_groups():
    values = consumed([entry(0, 0), entry(1, 2), entry(2, 2)])
    assert {name: value for name, value in values.items() if name.startswith("training/")} == {
        "training/off_policy/lag/0": 1.0,
        "training/off_policy/lag/2": 2.0,
    }
    assert (values["buffer/lag_max"], values["buffer/num_groups"]) == (2.0, 3.0)
    assert (values["buffer/age_s/mean"], values["buffer/age_s/max"], values["buffer/num_bytes"]) == (3.0, 3.0, 300.0)


def test_a_step_of_one_source_names_it_too():
    # A run may have several although a step has one: by source the steps add up only if each names its own.
    values = consumed([entry(0, 0, 2, 3), entry(1, 0, 9)])
    assert (values["buffer/num_groups/toy"], values["buffer/num_answers/toy"]) == (2.0, 3.0)
    assert (values["buffer/num_groups"], values["buffer/num_answers"]) == (2.0, 3.0)


def test_a_greedy_answer_behind_the_sampled_ones_is_no_answer():
    (kept,) = answers([entry(0, 0, 2, 3, 99)], 2)
    assert (kept.sampled, kept.tokens) == ((2, 3), (7, 8))
    assert consumed([kept])["buffer/num_answers"] == 2.0
    without = [gone(1, 3, 10, 20)]
    assert answers(without, 2) == without


def test_several_sources_are_told_apart():
    values = consumed([entry(0, 0), entry(1, 0, source="openai/gsm8k"), entry(2, 0)])
    assert (values["buffer/num_groups/toy"], values["buffer/num_groups/openai/gsm8k"]) == (2.0, 1.0)
    values = left([gone(1, 3, 10), gone(2, 3, 30, source="openai/gsm8k")], [])
    assert values["buffer/left/stale/groups/openai/gsm8k"] == 1.0
    assert values["buffer/left/stale/answers/openai/gsm8k"] == 1.0
    assert values["buffer/left/stale/response_length/openai/gsm8k/mean"] == 30.0
    assert values["buffer/left/stale/response_length/openai/gsm8k/le_32"] == 1.0


def test_lengths_are_told_apart_within_groups_and_between_them():
    values = consumed([entry(0, 0, 4, 4), entry(1, 0, 10, 16)])
    assert values["response_length/in_group_std"] == (0 + 9 / 2) ** 0.5, "the groups' means do not matter"
    assert consumed([entry(0, 0, 3)])["response_length/in_group_std"] == 0.0


def test_answers_are_counted_by_length_class():
    values = consumed([entry(0, 0, 1, 5, 6), entry(1, 0, 7)])
    assert {name: value for name, value in values.items() if "/le_" in name} == {
        "response_length/toy/le_1": 1.0,
        "response_length/toy/le_6": 2.0,
        "response_length/toy/le_8": 1.0,
    }


def test_groups_that_left_as_stale_are_counted_with_lag_and_length():
    values = left([gone(1, 3, 10, 20), gone(2, 5, 60, outcome="discarded")], [entry(3, 0, 11)])
    assert values == {
        "buffer/num_left": 2.0,
        "buffer/left_frac": 2 / 3,
        "buffer/left_frac/stale": 2 / 3,
        "buffer/left/stale/groups": 2.0,
        "buffer/left/stale/answers": 3.0,
        "buffer/left/stale/discarded": 1.0,
        "buffer/left/stale/lag_max": 5.0,
        "buffer/left/stale/response_length/mean": 30.0,
        "buffer/left/stale/groups/toy": 2.0,
        "buffer/left/stale/answers/toy": 3.0,
        "buffer/left/stale/response_length/toy/mean": 30.0,
        "buffer/left/stale/response_length/toy/le_12": 1.0,
        "buffer/left/stale/response_length/toy/le_24": 1.0,
        "buffer/left/stale/response_length/toy/le_64": 1.0,
        "buffer/left_frac/response_length/le_12": 0.5,
        "buffer/left_frac/response_length/le_24": 1.0,
        "buffer/left_frac/response_length/le_64": 1.0,
    }


def test_the_shares_of_reasons_are_of_all_groups_that_ended():
    values = left([gone(1, 3, 10), gone(2, 5, 60, reason="other")], [entry(3, 0), entry(4, 0)])
    assert (values["buffer/left_frac/stale"], values["buffer/left_frac/other"]) == (0.25, 0.25)
    assert values["buffer/left_frac"] == 0.5


def test_a_step_without_losses_says_so():
    assert left([], [entry(0, 0)]) == {"buffer/num_left": 0.0, "buffer/left_frac": 0.0}
