"""Prompts: make data files of public data sets, and see which prompts a run has drawn and why."""

ACTIONS = {
    "prepare": "convert a public data set to Parquet files in verl's schema",
    "draws": "which prompt each ordinal of a run was given, with the reason",
}
"""Action -> what it does. Each is the file or folder of its name beside this one."""
