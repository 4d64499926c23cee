"""The page of a run: what `python -m trainer.view` writes."""
