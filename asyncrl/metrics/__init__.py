"""Metrics on their way out: reduced over micro-batches and ranks, timed, written to sinks, shown on the console.

Names whose value depends on the clock start with `timing_s/`, `perf/` or `buffer/age_s`; everything else is
reproducible from configuration and seed.
"""
