"""Episodes into the buffer: workers reserve prompts, play them on servers, and put whole groups."""
