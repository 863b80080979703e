"""Tools written for verl, loaded unchanged: tool_config.yaml, and classes with create, execute and release."""
