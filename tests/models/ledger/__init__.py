"""The ledger: ordinals, tokens, crashes, lost replies, an old trainer that wakes up, checkpoints and a lost tail."""
