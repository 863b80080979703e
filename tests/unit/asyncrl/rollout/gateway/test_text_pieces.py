"""Text comes in pieces that never cut a character, and they join to the text of all ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from asyncrl.rollout.gateway.text_pieces import MAX_HELD_TOKENS, REPLACEMENT, TextPieces

WORDS = ["\u2581hello", "\u2581world", "!", "\u2581", "caf"]


def byte_level() -> Tokenizer:
    """One token a byte, as GPT-2's tokenizers write bytes."""
    tokenizer = Tokenizer(models.WordLevel({char: at for at, char in enumerate(sorted(ByteLevel.alphabet()))}))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Words, and bytes for what no word spells, as SentencePiece's; the first space is dropped."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {word: 256 + at for at, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocab))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def byte_chars() -> list[str]:
    """How GPT-2's tokenizers write each byte: as itself where it is printable, else as a character from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


TOKENIZERS = {"byte_level": byte_level(), "byte_fallback": byte_fallback()}


def pieces_of(tokenizer: Tokenizer, chunks: list[list[int]]) -> list[str]:
    pieces = TextPieces(lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False))
    return [*(pieces.push(chunk) for chunk in chunks), pieces.finish()]


@given(chunks=st.lists(st.lists(st.integers(0, 255), max_size=5), max_size=12))
def test_pieces_of_any_ids_join_to_the_whole_text(chunks: list[list[int]]) -> None:
    tokenizer = TOKENIZERS["byte_level"]
    whole = tokenizer.decode([one for chunk in chunks for one in chunk], skip_special_tokens=False)
    assert "".join(pieces_of(tokenizer, chunks)) == whole


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(max_size=12), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=40))
def test_a_character_that_comes_in_bytes_is_shown_once_it_is_whole(name: str, text: str, sizes: list[int]) -> None:
    """B106: half of a character never becomes U+FFFD."""
    text = text.replace(REPLACEMENT, "").replace(" ", "_")
    tokenizer = TOKENIZERS[name]
    vocab = tokenizer.get_vocab()
    by_byte = range(256) if name == "byte_fallback" else [vocab[char] for char in byte_chars()]
    data = [by_byte[one] for one in text.encode()]
    chunks = []
    for size in [*sizes, len(data) + 1]:
        chunks.append(data[:size])
        data = data[size:]
    pieces = pieces_of(tokenizer, chunks)
    assert "".join(pieces) == text
    assert not any(REPLACEMENT in piece for piece in pieces)


def test_the_space_before_a_word_is_not_lost_between_two_pieces() -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    assert pieces_of(tokenizer, [[256], [257], [258]]) == ["hello", " world", "!", ""]


def test_bytes_that_become_no_character_are_shown_at_the_end_and_never_held_without_bound() -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    assert pieces_of(tokenizer, [[256], [0xE2, 0x9D]]) == ["hello", "", REPLACEMENT * 2]
    endless = pieces_of(tokenizer, [[0xFF]] * (2 * MAX_HELD_TOKENS))
    assert any(endless[: MAX_HELD_TOKENS + 2])
