"""A generator whose tokens are a function of seed and position, and that can be cut after any of them."""

from collections.abc import Callable, Sequence

from asyncrl.inference.fleet import Generated, Session
from asyncrl.inference.protocol import Sampling
from asyncrl.rollout.progress import Progress
from buffer import Span
from tests.support.char_chat import END


class SeededFleet:
    """A token is a function of seed and position; answers end at positions of their own. Cuts after `cut` tokens."""

    def __init__(self, progress: Progress, cut: int | None = None) -> None:
        self.progress, self.left = progress, cut

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, session: Session, may_start_on: Callable[[int], bool]
    ) -> Generated:
        out: list[int] = []
        finish = "length"
        while len(out) < sampling.max_new_tokens:
            if self.left is not None:
                if self.left == 0:
                    self.progress.is_halted = True
                    finish = "abort"
                    break
                self.left -= 1
            position = len(token_ids) + len(out)
            drawn = (sampling.seed * 31 + position * position * 7) % 13
            out.append(END if drawn == 0 else 10 + drawn % 10)
            if out[-1] == END:
                finish = "stop"
                break
        logprobs = tuple(-0.001 * (len(token_ids) + i) for i in range(len(out)))
        spans = (Span(5, 50, len(out)),) if out else ()
        return Generated(tuple(out), logprobs, finish, spans, "server-0")

    async def cut(self, session: Session) -> None:
        raise AssertionError("nothing is in flight")
