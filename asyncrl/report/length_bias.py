"""Whether dropping selected on length: answers that were started against those trained on, censored ones included.

Three things know of it, and each knows what the others do not:

- the metrics of each step: answers trained on and groups that a lease dropped, by source and length class;
- what workers report: answers of groups that never came in, by source and length class, finished and cut off;
- the buffer's token ledger: how many answers and tokens came to which end, by source, whoever has died meanwhile.

Totals are the ledger's where there is one. An answer that was cut off is at least as long as it had got: how much
longer is estimated where its length class is known (`answer_lengths`), and otherwise said to be a lower bound.

Read from the metrics of each step, over all sources, and by source where one is named behind them:

    buffer/num_answers                            answers trained on
    response_length/mean                          tokens of each of those
    response_length/<source>/le_<tokens>          how many of them are in that class
    buffer/left/<reason>/answers                  answers of groups that left instead, for the reason
    buffer/left/<reason>/response_length/...      the same two of those
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from asyncrl.report.answer_lengths import AnswerLengths, Estimate
from asyncrl.report.lines import Line
from buffer.tokens import TokenLedger

NOTICEABLE = 0.05  # a difference of means below this is within the noise of a run's lengths
ALL = ""
TRAINED = re.compile(r"buffer/num_answers(/(?P<source>.+))?\Z")
LEFT = re.compile(r"buffer/left/(?P<reason>[^/]+)/answers(/(?P<source>.+))?\Z")
CLASS = re.compile(r"(buffer/left/(?P<reason>[^/]+)/)?response_length/(?P<source>.+)/le_(?P<largest>\d+)\Z")
TRAINED_ON = ("trained", "masked")
"""Fates in the token ledger of answers that were trained on, those kept out of the loss included."""
CUT = ("failed/", "stale/partials")
"""Fates whose answers may have been unfinished."""
GREEDY = "training/masked_tokens/baseline/"
"""Tokens of greedy answers, by source: there are some if groups came with them."""
NEVER_TO_BE_TRAINED = ("evaluated", "rolled_back")
"""Fates that are no end of a training answer: held-out ones, and those that the surviving branch trains again."""

Fates = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Fate -> data source -> `trajectories` and `tokens`: the JSON form of `TokenLedger.fates`."""
Totals = dict[str, dict[str, "Lengths"]]
"""Data source -> reason -> lengths."""


@dataclass
class Lengths:
    """Answers of one fate and their tokens. `at_least`: some were cut off, so their true lengths are larger."""

    answers: float = 0.0
    tokens: float = 0.0
    at_least: bool = False

    def add(self, answers: float, tokens: float) -> None:
        """Count further answers."""
        self.answers += answers
        self.tokens += tokens

    def per_answer(self) -> float | None:
        """Mean tokens of an answer; None without answers."""
        return self.tokens / self.answers if self.answers > 0 else None

    def to_json(self) -> dict[str, float | bool | None]:
        """For summary.json."""
        return {"answers": self.answers, "tokens_per_answer": self.per_answer(), "at_least": self.at_least}


@dataclass(frozen=True)
class LengthBias:
    """Lengths by fate: the trained ones, by reason those that left before, and what is known of each one's class."""

    trained: Lengths
    left: Mapping[str, Lengths]
    classes: AnswerLengths = field(default_factory=AnswerLengths)

    def seen(self) -> Lengths:
        """All that were started and have ended, each as long as it had got."""
        kinds = [self.trained, *self.left.values()]
        return Lengths(
            sum(kind.answers for kind in kinds),
            sum(kind.tokens for kind in kinds),
            any(kind.at_least for kind in kinds) or self.classes.num_cut > 0,
        )

    def started(self) -> Estimate | None:
        """Mean tokens of a started answer; None without answers."""
        seen = self.seen()
        mean = seen.per_answer()
        if mean is None or not seen.at_least:
            return None if mean is None else Estimate(mean, at_least=False)
        estimate = self.classes.mean() if self.classes.num_cut else None
        # What was seen is a bound whatever the cut ones would have become; an estimate below it knows too little.
        if estimate is None or estimate.tokens < mean:
            return Estimate(mean, at_least=True)
        return estimate

    def verdict(self) -> str:
        """One plain sentence about what dropping did to the lengths."""
        left = sum(kind.answers for kind in self.left.values())
        trained, started = self.trained.per_answer(), self.started()
        if trained is None or started is None:
            return "No group was trained on, so there is nothing to compare."
        if left == 0:
            return "Every group that was started and has ended was trained on: nothing selected on length."
        at_least = "at least " if started.at_least else ""
        numbers = f"{trained:.1f} tokens per trained answer against {at_least}{started.tokens:.1f} per started one"
        share = f"{left:.0f} of {self.seen().answers:.0f} answers left before training{self._cut()}"
        if trained < started.tokens * (1 - NOTICEABLE):
            return (
                f"Trained answers are {at_least}{1 - trained / started.tokens:.0%} shorter than started ones "
                f"({numbers}; {share}): long answers were lost. staleness.policy wait, a higher staleness.limit or "
                "fewer rollout.slots loses fewer of them."
            )
        if started.at_least:
            return f"Nothing shows that long answers were lost, but started ones may be longer ({numbers}; {share})."
        if trained > started.tokens * (1 + NOTICEABLE):
            return (
                f"Trained answers are {trained / started.tokens - 1:.0%} longer than started ones ({numbers}; {share})."
            )
        return f"Trained answers are as long as started ones ({numbers}; {share})."

    def _cut(self) -> str:
        if not self.seen().at_least:
            return ""
        number = f"{self.classes.num_cut} of them unfinished" if self.classes.num_cut else "some of them unfinished"
        return f", {number} and counted as at least as long as they had got"

    def to_json(self) -> dict[str, object]:
        """For summary.json."""
        started = self.started()
        return {
            "trained": self.trained.to_json(),
            "started": {
                "answers": self.seen().answers,
                "tokens_per_answer": None if started is None else started.tokens,
                "at_least": started is not None and started.at_least,
                "seen_per_answer": self.seen().per_answer(),
            },
            "left": {reason: kind.to_json() for reason, kind in sorted(self.left.items())},
            "verdict": self.verdict(),
        }


def measure(
    lines: Sequence[Line],
    ended: Mapping[str, AnswerLengths] | None = None,
    fates: Fates | None = None,
) -> dict[str, LengthBias]:
    """Lengths by source; "" is all sources together and always there. Groups without a length are left aside.

    Args:
        lines: metrics of the surviving branch.
        ended: by source, answers of groups that ended with a worker and never came in.
        fates: the token ledger's totals, as its to_json gives them; they replace those of the lines, unless groups
            came with greedy answers: the ledger counts those in, and they are in no batch.
    """
    if any(name.startswith(GREEDY) for line in lines for name in line.values):
        fates = None
    trained, left = _totals(lines)
    classes: dict[str, AnswerLengths] = defaultdict(AnswerLengths)
    _take_classes(lines, trained, left, classes)
    for source, lengths in (ended or {}).items():
        for name in (source, ALL):
            classes[name].merge(lengths)
    found = {
        source: LengthBias(trained[source], dict(left[source]), classes[source])
        for source in sorted({ALL, *trained, *left, *classes})
    }
    for source, bias in _of_fates(fates or {}).items():
        if bias.seen().answers:
            found[source] = LengthBias(bias.trained, bias.left, classes[source])
    return found


def of_tokens(ledger: TokenLedger) -> dict[str, LengthBias]:
    """Lengths by source from the token ledger alone; "" is all sources together and always there.

    It knows totals only: where answers were cut off, the length of started ones is a lower bound.
    """
    return _of_fates(ledger.to_json()["fates"])


def _of_fates(fates: Fates) -> dict[str, LengthBias]:
    trained: dict[str, Lengths] = defaultdict(Lengths)
    left: Totals = defaultdict(lambda: defaultdict(Lengths))
    for fate, by_source in fates.items():
        if fate in NEVER_TO_BE_TRAINED:
            continue
        for source, spent in by_source.items():
            if not spent["trajectories"] and fate not in TRAINED_ON:
                continue  # of a lost worker, which told how many tokens it had, but not of how many answers
            for name in {source, ALL}:
                if fate in TRAINED_ON:
                    trained[name].add(spent["trajectories"], spent["tokens"])
                else:
                    left[name][fate].add(spent["trajectories"], spent["tokens"])
                    left[name][fate].at_least |= fate.startswith(CUT)
    return {source: LengthBias(trained[source], dict(left[source])) for source in sorted({ALL, *trained, *left})}


def _totals(lines: Iterable[Line]) -> tuple[dict[str, Lengths], Totals]:
    """Trained and left answers of all lines, by source; left ones by reason."""
    trained: dict[str, Lengths] = defaultdict(Lengths)
    left: Totals = defaultdict(lambda: defaultdict(Lengths))
    for line in lines:
        for name, answers in line.values.items():
            if (match := TRAINED.match(name)) is not None:
                source = match["source"] or ALL
                mean = line.values.get(f"response_length/{source}/mean" if source else "response_length/mean")
                if mean is not None:
                    trained[source].add(answers, answers * mean)
            elif (match := LEFT.match(name)) is not None:
                source, reason = match["source"] or ALL, match["reason"]
                behind = f"response_length/{source}/mean" if source else "response_length/mean"
                mean = line.values.get(f"buffer/left/{reason}/{behind}")
                if mean is not None and answers > 0:
                    left[source][reason].add(answers, answers * mean)
    return trained, left


def _take_classes(
    lines: Iterable[Line], trained: Mapping[str, Lengths], left: Totals, classes: dict[str, AnswerLengths]
) -> None:
    """The classes of the answers that the lines count; all of them were finished."""
    for line in lines:
        for name, answers in line.values.items():
            if (match := CLASS.match(name)) is not None:
                for source in (match["source"], ALL):
                    classes[source].finished[int(match["largest"])] += int(answers)
    for source, lengths in classes.items():
        kinds = [trained.get(source, Lengths()), *left.get(source, {}).values()]
        lengths.finished_tokens = sum(kind.tokens for kind in kinds)
