"""The marks that models put around what they think before they answer."""

THOUGHT_OPEN, THOUGHT_CLOSE = "<think>", "</think>"
