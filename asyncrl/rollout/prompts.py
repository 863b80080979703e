"""Which prompt an ordinal stands for: pure arithmetic, so that a restart neither skips nor repeats one."""

_MASK = (1 << 64) - 1
_ROUNDS = 6


class PromptOrder:
    """Ordinal to row, for a data set of `size` rows: each epoch holds every row once.

    A permutation is a Feistel network over the next even power of two, walked until it falls inside the data set: no
    table is kept, whatever the size, and any ordinal is answered at once.
    Source: J. Black and P. Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002, section 4.
    """

    def __init__(self, size: int, seed: int, shuffle: bool) -> None:
        if size < 1:
            raise ValueError(f"a data set needs at least one row, not {size}")
        self.size, self.seed, self.shuffle = size, seed, shuffle
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._half_mask = (1 << self._half_bits) - 1

    def index(self, ordinal: int) -> int:
        """The row of an ordinal, in [0, size).

        Args:
            ordinal: 0 or more. Its epoch is ordinal // size, drawn in an order of its own unless shuffle is off.
        """
        if ordinal < 0:
            raise ValueError(f"ordinals start at 0, not {ordinal}")
        epoch, position = divmod(ordinal, self.size)
        if not self.shuffle:
            return position
        key = _mix(_mix(self.seed & _MASK) ^ epoch)
        while True:
            position = self._permuted(position, key)
            if position < self.size:  # at most four tries on average: the domain is below four times the size
                return position

    def _permuted(self, value: int, key: int) -> int:
        left, right = value >> self._half_bits, value & self._half_mask
        for number in range(_ROUNDS):
            left, right = right, left ^ (_mix(key ^ (number << 56) ^ right) & self._half_mask)
        return left << self._half_bits | right


def _mix(value: int) -> int:
    """splitmix64: one 64-bit integer into another that looks unrelated. Source: Steele et al., OOPSLA 2014."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
