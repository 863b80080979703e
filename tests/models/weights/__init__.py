"""Weight sync: publish, stage, activate, acknowledge, anchors, pruning, crashes, and an old trainer that wakes up."""
