"""Prompts that occur more than once: found by hash, sixteen bytes a row."""

import json
from array import array

import numpy as np
from blake3 import blake3

from asyncrl.data.report import Finding, Findings
from asyncrl.data.rows import PromptRow


class Repeats:
    """Collects rows and reports exact repeats, and prompts that have two different truths."""

    def __init__(self) -> None:
        self._rows, self._prompts, self._truths = array("q"), array("Q"), array("Q")

    def add(self, row: PromptRow) -> None:
        """Remember a row by the hashes of its prompt and of its truth."""
        prompt = [row.data_source, [dict(message) for message in row.messages], [dict(tool) for tool in row.tools]]
        self._rows.append(row.index)
        self._prompts.append(_hash(prompt))
        self._truths.append(_hash(row.ground_truth))

    def findings(self) -> Findings:
        """One finding for each row that repeats an earlier one, in row order."""
        found = Findings()
        if not self._rows:
            return found
        rows, prompts, truths = (np.asarray(column) for column in (self._rows, self._prompts, self._truths))
        _, first, group, sizes = np.unique(prompts, return_index=True, return_inverse=True, return_counts=True)
        if len(first) == len(rows):
            return found
        truths_seen: dict[int, set[int]] = {}
        for i in np.flatnonzero(sizes[group] > 1):
            original = int(rows[first[group[i]]])
            seen = truths_seen.setdefault(int(group[i]), set())
            truth, place = int(truths[i]), f"row {rows[i]}"
            if truth in seen:
                found.add(Finding(place, "duplicate", f"repeats the prompt and the truth of row {original}"))
            elif seen:
                found.add(Finding(place, "other_truth", f"has the prompt of row {original} with another truth"))
            seen.add(truth)
        return found


def _hash(value: object) -> int:
    text = json.dumps(value, sort_keys=True).encode()
    return int.from_bytes(blake3(text).digest(length=8), "little")
