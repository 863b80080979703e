"""The trainer cluster: leases groups, takes optimizer steps, publishes versions, and keeps checkpoints."""
