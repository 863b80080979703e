"""The gateway: any harness that takes a base URL and a key plays episodes of the run, in the protocol it speaks."""
