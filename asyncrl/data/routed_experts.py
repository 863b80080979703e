"""The column of a row that says which experts a server sent its tokens to."""

COLUMN = "routed_experts"
"""[T, layers, K] integers of token t when the server read it; negative where the server did not say, as of the last
token, which nobody reads. Layers are those with experts, or all of the model."""
