"""Question answering over a small fictional world that the model searches."""
