"""MCP servers and their tools. `spec` says how one is reached; the other modules need the extra asyncrl[mcp]."""
