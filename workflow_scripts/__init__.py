"""Draftmill: prompts from many datasets, answered by your target model, as verified drafter training data."""
