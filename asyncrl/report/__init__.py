"""What a run directory shows: summary, plots, lag, length bias; from metrics.jsonl and the audit alone."""
