"""OpenAI's protocol: request bodies, answers whole and streamed, and their description."""
