"""Runs as replies of OpenAI's Chat Completions and of Anthropic's Messages."""
