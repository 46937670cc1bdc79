"""A model as vLLM serves it: its checkpoint, what its layers keep of past tokens, and the memory that both take."""
